//! How good the tuner is on one problem: held against an exhaustive search that it does not see.

use gridguard::profile::Objective;
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::candidate::Candidate;
use crate::measurer::{FailureKind, MeasureFailure, Measurer};
use crate::number::count;
use crate::sample::{Portion, Sample};
use crate::space::Space;
use crate::stats::{PairedRatio, Samples};
use crate::tune::{TuneError, tune};

/// What an evaluation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationEffort {
    /// Samples of every candidate in the exhaustive search, the first one dropped: two at least.
    pub exhaustive_samples: u32,
    /// Searches of the tuner.
    pub runs: u32,
    /// Rounds of two candidates that are held against each other.
    pub paired_rounds: u32,
}

impl Default for EvaluationEffort {
    fn default() -> Self {
        Self { exhaustive_samples: 40, runs: 10, paired_rounds: 41 }
    }
}

/// How the tuner did on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Candidates that could be timed.
    pub candidates: u64,
    /// What the exhaustive search, all candidates in turn, found fastest.
    pub best: Candidate,
    /// Its median there, in nanoseconds.
    pub best_ns: f64,
    /// The default's.
    pub default_ns: f64,
    /// Samples of the exhaustive search.
    pub exhaustive_evaluations: u64,
    /// The tuner's searches.
    pub runs: Vec<SearchRun>,
    /// Searches that took the slowest candidate for the default: what the tuner finds where nobody
    /// chose well before it.
    pub runs_from_slowest: Vec<SearchRun>,
}

/// One search of the tuner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchRun {
    /// Its choice.
    pub winner: Candidate,
    /// Samples that it took.
    pub evaluations: u64,
    /// How much slower the choice is than the best, as a fraction; both measured anew, in turn. Zero
    /// where it is no slower.
    pub regret: f64,
    /// The choice's time over the default's, measured anew, in turn.
    pub against_default: f64,
}

/// Why there is no evaluation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// The tuner itself found nothing.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// A candidate that was right before failed.
    #[error("a candidate failed while it was measured: {0}")]
    MeasureFailure(#[from] MeasureFailure),
    /// Somebody interrupted, or the budget was spent.
    #[error("the evaluation was ended before it was done")]
    Ended,
}

/// What an exhaustive search found: every candidate measured as often as any other.
#[derive(Clone, Debug, PartialEq)]
pub struct ExhaustiveSearch {
    /// Those that could be timed, with their medians in nanoseconds, the default first.
    pub medians: Vec<(Candidate, f64)>,
    /// Samples that it took.
    pub evaluations: u64,
}

impl ExhaustiveSearch {
    /// Checks all candidates of `space` and measures those that are right, so many samples each.
    ///
    /// # Errors
    ///
    /// [`EvaluateError`] where the default does not run, or something fails in the middle.
    pub fn new(
        measurer: &mut dyn Measurer,
        space: &Space,
        samples: u32,
    ) -> Result<Self, EvaluateError> {
        let default = space.default().ok_or(TuneError::NoCandidate)?;
        measurer.check(default).map_err(TuneError::Default)?;
        let others = space.candidates().iter().skip(1);
        let right = others.filter(|candidate| measurer.check(candidate).is_ok());
        let timed: Vec<Candidate> = core::iter::once(default).chain(right).cloned().collect();
        let medians = exhaustive(measurer, &timed, samples)?;
        let evaluations = count(timed.len()).saturating_mul(samples.into());
        Ok(Self { medians: timed.into_iter().zip(medians).collect(), evaluations })
    }

    /// The fastest candidate and its median in nanoseconds.
    #[must_use]
    pub fn best(&self) -> Option<&(Candidate, f64)> {
        self.medians.iter().min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// The slowest candidate and its median in nanoseconds.
    #[must_use]
    pub fn slowest(&self) -> Option<&(Candidate, f64)> {
        self.medians.iter().max_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// How much slower a choice is than the best, as a fraction; both are measured anew, in turn, so
    /// that the best is not so by luck. Zero where the choice is no slower.
    ///
    /// # Errors
    ///
    /// As [`Measurer::sample`].
    pub fn regret(
        &self,
        measurer: &mut dyn Measurer,
        choice: &Candidate,
        rounds: u32,
    ) -> Result<f64, MeasureFailure> {
        let best = self.best().map_or(choice, |(best, _)| best);
        Ok((ratio(measurer, choice, best, rounds)? - 1.0).max(0.0))
    }
}

/// Measures everything, then lets the tuner search as often as `effort` says.
///
/// The budget is that of each search, and its interrupt ends all of it.
///
/// # Errors
///
/// As [`ExhaustiveSearch::new`], where a search fails, and [`EvaluateError::Ended`] where one is cut short.
pub fn evaluate(
    measurer: &mut dyn Measurer,
    space: &Space,
    objective: Objective,
    budget: &Budget<'_>,
    effort: EvaluationEffort,
) -> Result<Evaluation, EvaluateError> {
    let mut heeding = Heeding { measurer, budget };
    let evaluated = evaluated(&mut heeding, space, objective, budget, effort);
    // Whatever failed then, it is because of that.
    if budget.is_interrupted() { Err(EvaluateError::Ended) } else { evaluated }
}

/// Measures until somebody interrupts.
struct Heeding<'a, 'b> {
    measurer: &'a mut dyn Measurer,
    budget: &'a Budget<'b>,
}

impl Heeding<'_, '_> {
    fn go_on(&self) -> Result<(), MeasureFailure> {
        match self.budget.is_interrupted() {
            true => Err(MeasureFailure::new(FailureKind::Timeout, "interrupted")),
            false => Ok(()),
        }
    }
}

impl Measurer for Heeding<'_, '_> {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.go_on()?;
        self.measurer.check(candidate)
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
        count: u32,
    ) -> Result<Vec<Sample>, MeasureFailure> {
        self.go_on()?;
        self.measurer.sample(candidate, portion, count)
    }
}

fn evaluated(
    measurer: &mut dyn Measurer,
    space: &Space,
    objective: Objective,
    budget: &Budget<'_>,
    effort: EvaluationEffort,
) -> Result<Evaluation, EvaluateError> {
    let mut space = space.clone();
    space.restrict(objective);
    let oracle = ExhaustiveSearch::new(measurer, &space, effort.exhaustive_samples)?;
    let ends = oracle.best().cloned().zip(oracle.medians.first().cloned());
    let ((best, best_ns), (_, default_ns)) = ends.ok_or(TuneError::NoCandidate)?;
    let mut evaluate = Evaluated { measurer, oracle: &oracle, objective, budget, effort };
    let runs = evaluate.runs(&space)?;
    if let Some((slowest, _)) = oracle.slowest() {
        space.make_default(slowest);
    }
    let runs_from_slowest = evaluate.runs(&space)?;
    Ok(Evaluation {
        candidates: count(oracle.medians.len()),
        best,
        best_ns,
        default_ns,
        exhaustive_evaluations: oracle.evaluations,
        runs,
        runs_from_slowest,
    })
}

/// What all searches of a problem have in common.
struct Evaluated<'a, 'b> {
    measurer: &'a mut dyn Measurer,
    oracle: &'a ExhaustiveSearch,
    objective: Objective,
    budget: &'a Budget<'b>,
    effort: EvaluationEffort,
}

impl Evaluated<'_, '_> {
    fn runs(&mut self, space: &Space) -> Result<Vec<SearchRun>, EvaluateError> {
        let mut runs: Vec<SearchRun> = Vec::new();
        for _ in 0..self.effort.runs {
            let mut space = space.clone();
            let outcome = tune(self.measurer, &mut space, self.objective, self.budget, &mut ())?;
            if !outcome.complete {
                return Err(EvaluateError::Ended);
            }
            let evaluations = outcome.evaluations;
            let known = runs.iter().find(|run| run.winner == outcome.winner).cloned();
            let run = match known {
                Some(run) => run,
                None => self.judge(outcome.winner, &outcome.default)?,
            };
            runs.push(SearchRun { evaluations, ..run });
        }
        Ok(runs)
    }

    fn judge(
        &mut self,
        winner: Candidate,
        default: &Candidate,
    ) -> Result<SearchRun, MeasureFailure> {
        let rounds = self.effort.paired_rounds;
        let regret = self.oracle.regret(self.measurer, &winner, rounds)?;
        let against_default = ratio(self.measurer, &winner, default, rounds)?;
        Ok(SearchRun { winner, evaluations: 0, regret, against_default })
    }
}

impl SearchRun {
    /// The choice of most searches and how many made it.
    #[must_use]
    pub fn usual(runs: &[Self]) -> Option<(&Self, usize)> {
        let times = |run: &Self| runs.iter().filter(|one| one.winner == run.winner).count();
        runs.iter().rev().map(|run| (run, times(run))).max_by_key(|(_, times)| *times)
    }

    /// How many searches did not end with the choice that most of them made.
    #[must_use]
    pub fn flips(runs: &[Self]) -> usize {
        runs.len() - Self::usual(runs).map_or(0, |(_, times)| times)
    }
}

/// The medians of all candidates, a sample of each in turn, in an order that changes.
fn exhaustive(
    measurer: &mut dyn Measurer,
    candidates: &[Candidate],
    samples: u32,
) -> Result<Vec<f64>, MeasureFailure> {
    let mut times = vec![Vec::new(); candidates.len()];
    for round in 0..samples {
        for place in 0..candidates.len() {
            let turn = (place + usize::try_from(round).unwrap_or(0)) % candidates.len();
            let (Some(candidate), Some(times)) = (candidates.get(turn), times.get_mut(turn)) else {
                continue;
            };
            let time_ns = sample(measurer, candidate)?;
            if round > 0 {
                times.push(time_ns);
            }
        }
    }
    let median = |times: Vec<f64>| Samples::new(times).map_or(f64::NAN, |times| times.median());
    Ok(times.into_iter().map(median).collect())
}

/// The median of `one`'s time over `other`'s, in rounds of both.
///
/// # Errors
///
/// As [`Measurer::sample`].
pub fn ratio(
    measurer: &mut dyn Measurer,
    one: &Candidate,
    other: &Candidate,
    rounds: u32,
) -> Result<f64, MeasureFailure> {
    if one == other {
        return Ok(1.0);
    }
    let mut pairs = Vec::new();
    for round in 0..=rounds {
        // Whoever comes second finds the device as the first one left it.
        let pair = if round % 2 == 0 {
            let first = sample(measurer, one)?;
            (first, sample(measurer, other)?)
        } else {
            let first = sample(measurer, other)?;
            (sample(measurer, one)?, first)
        };
        if round > 0 {
            pairs.push(pair);
        }
    }
    Ok(PairedRatio::new(pairs).map_or(f64::NAN, |ratio| ratio.median))
}

fn sample(measurer: &mut dyn Measurer, candidate: &Candidate) -> Result<f64, MeasureFailure> {
    let samples = measurer.sample(candidate, Portion::Sequence, 1)?;
    Ok(samples.first().map_or(f64::NAN, |sample| sample.time_ns))
}

#[cfg(test)]
mod tests;
