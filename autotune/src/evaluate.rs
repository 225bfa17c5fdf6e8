//! Evaluates the tuner on one problem against an exhaustive search that it does not see.

use gridguard::profile::Objective;
use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::control::Budget;
use crate::failure::{FailureKind, MeasureFailure};
use crate::measure::{Measurer, Portion, Sample};
use crate::space::Space;
use crate::stats::{Samples, count, position};
use crate::tune::{TuneError, tune};

/// How much an evaluation measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationEffort {
    /// Samples of every candidate in the exhaustive search, the first one dropped: at least two.
    pub exhaustive_samples: u32,
    /// Searches of the tuner.
    pub runs: u32,
    /// Rounds of a paired comparison of two candidates.
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
    /// The fastest candidate of the exhaustive search.
    pub best: Candidate,
    /// Its median there, in nanoseconds.
    pub best_ns: f64,
    /// The default's median there, in nanoseconds.
    pub default_ns: f64,
    /// Samples of the exhaustive search.
    pub exhaustive_evaluations: u64,
    /// The tuner's searches.
    pub runs: Vec<SearchRun>,
    /// Searches with the slowest candidate as the default: what the tuner finds from a bad one.
    pub runs_from_slowest: Vec<SearchRun>,
}

/// One search of the tuner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchRun {
    /// Its choice.
    pub winner: Candidate,
    /// Samples that it took.
    pub evaluations: u64,
    /// How much slower the choice is than the best, as a fraction; both remeasured, interleaved.
    /// Zero if it is no slower.
    pub regret: f64,
    /// The choice's time over the default's, both remeasured, interleaved.
    pub against_default: f64,
}

impl SearchRun {
    /// The most frequent choice, by its last run, and how many runs made it.
    #[must_use]
    pub fn usual(runs: &[Self]) -> Option<(&Self, usize)> {
        let times = |run: &Self| runs.iter().filter(|one| one.winner == run.winner).count();
        runs.iter().rev().map(|run| (run, times(run))).max_by_key(|(_, times)| *times)
    }

    /// How many runs ended with another choice than the most frequent one.
    #[must_use]
    pub fn flips(runs: &[Self]) -> usize {
        runs.len() - Self::usual(runs).map_or(0, |(_, times)| times)
    }
}

/// Why there is no evaluation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// The tuner found nothing.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// A candidate that had passed its check failed.
    #[error("a candidate failed during the measurement: {0}")]
    Failure(#[from] MeasureFailure),
    /// The evaluation was interrupted, or the budget of a search was spent.
    #[error("the evaluation was ended before it was complete")]
    Ended,
}

/// An exhaustive search: every candidate measured equally often.
#[derive(Clone, Debug, PartialEq)]
pub struct ExhaustiveSearch {
    /// The candidates that could be timed and their medians in nanoseconds, the default first.
    pub medians: Vec<(Candidate, f64)>,
    /// Samples that it took.
    pub evaluations: u64,
}

impl ExhaustiveSearch {
    /// Checks all candidates of `space` and takes `samples` of each correct one, interleaved in a
    /// rotating order.
    ///
    /// # Errors
    ///
    /// [`EvaluateError`] if the default does not run, or a candidate fails after its check.
    pub fn new(
        measurer: &mut dyn Measurer,
        space: &Space,
        samples: u32,
    ) -> Result<Self, EvaluateError> {
        let default = space.default().ok_or(TuneError::NoCandidate)?;
        measurer.check(default).map_err(TuneError::Default)?;
        let others = space.candidates().iter().skip(1);
        let correct = others.filter(|candidate| measurer.check(candidate).is_ok());
        let timed: Vec<Candidate> = core::iter::once(default).chain(correct).cloned().collect();
        let mut times = vec![Vec::new(); timed.len()];
        for round in 0..samples {
            for place in (0..timed.len()).cycle().skip(position(round.into())).take(timed.len()) {
                let time_ns = sample(measurer, &timed[place])?;
                if round > 0 {
                    times[place].push(time_ns);
                }
            }
        }
        let median = |times: Vec<f64>| Samples::new(times).map_or(f64::NAN, |times| times.median());
        let evaluations = count(timed.len()).saturating_mul(samples.into());
        let medians = timed.into_iter().zip(times.into_iter().map(median)).collect();
        Ok(Self { medians, evaluations })
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

    /// How much slower a choice is than the best, as a fraction. Both are remeasured, interleaved,
    /// so that the best does not profit from the luck that made it the best. Zero if it is no
    /// slower.
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

/// Searches exhaustively, then runs the tuner as often as `effort` says.
///
/// `budget` applies to each search of the tuner, and its interrupt ends the whole evaluation.
///
/// # Errors
///
/// As [`ExhaustiveSearch::new`]; also if a search fails, and [`EvaluateError::Ended`] if one is cut
/// short.
pub fn evaluate(
    measurer: &mut dyn Measurer,
    space: &Space,
    objective: Objective,
    budget: &Budget<'_>,
    effort: EvaluationEffort,
) -> Result<Evaluation, EvaluateError> {
    let mut measurer = Interruptible { measurer, budget };
    let evaluation = run(&mut measurer, space, objective, budget, effort);
    // Any failure after an interrupt is a consequence of it.
    if budget.is_interrupted() { Err(EvaluateError::Ended) } else { evaluation }
}

fn run(
    measurer: &mut dyn Measurer,
    space: &Space,
    objective: Objective,
    budget: &Budget<'_>,
    effort: EvaluationEffort,
) -> Result<Evaluation, EvaluateError> {
    let mut space = space.clone();
    space.restrict(objective);
    let exhaustive = ExhaustiveSearch::new(measurer, &space, effort.exhaustive_samples)?;
    let ends = exhaustive.best().cloned().zip(exhaustive.medians.first().cloned());
    let ((best, best_ns), (_, default_ns)) = ends.ok_or(TuneError::NoCandidate)?;
    let mut search = |space: &Space| -> Result<Vec<SearchRun>, EvaluateError> {
        let mut runs: Vec<SearchRun> = Vec::new();
        for _ in 0..effort.runs {
            let outcome = tune(measurer, &mut space.clone(), objective, budget, &mut ())?;
            if !outcome.complete {
                return Err(EvaluateError::Ended);
            }
            let (winner, evaluations) = (outcome.winner, outcome.evaluations);
            // The same choice is compared once.
            let (regret, against_default) = match runs.iter().find(|run| run.winner == winner) {
                Some(known) => (known.regret, known.against_default),
                None => (
                    exhaustive.regret(measurer, &winner, effort.paired_rounds)?,
                    ratio(measurer, &winner, &outcome.default, effort.paired_rounds)?,
                ),
            };
            runs.push(SearchRun { winner, evaluations, regret, against_default });
        }
        Ok(runs)
    };
    let runs = search(&space)?;
    if let Some((slowest, _)) = exhaustive.slowest() {
        space.make_default(slowest);
    }
    let runs_from_slowest = search(&space)?;
    Ok(Evaluation {
        candidates: count(exhaustive.medians.len()),
        best,
        best_ns,
        default_ns,
        exhaustive_evaluations: exhaustive.evaluations,
        runs,
        runs_from_slowest,
    })
}

/// The median ratio of `one`'s time to `other`'s over paired rounds, of which the first is dropped.
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
    let mut ratios = Vec::new();
    for round in 0..=rounds {
        // The order alternates, as the second finds the device as the first left it.
        let (one_ns, other_ns) = if round % 2 == 0 {
            let first = sample(measurer, one)?;
            (first, sample(measurer, other)?)
        } else {
            let first = sample(measurer, other)?;
            (sample(measurer, one)?, first)
        };
        if round > 0 {
            ratios.push(one_ns / other_ns);
        }
    }
    Ok(Samples::new(ratios).map_or(f64::NAN, |ratios| ratios.median()))
}

fn sample(measurer: &mut dyn Measurer, candidate: &Candidate) -> Result<f64, MeasureFailure> {
    measurer.sample(candidate, Portion::Sequence).map(|sample| sample.time_ns)
}

/// A measurer that fails every request after an interrupt.
struct Interruptible<'a, 'b> {
    measurer: &'a mut dyn Measurer,
    budget: &'a Budget<'b>,
}

impl Interruptible<'_, '_> {
    fn ensure_running(&self) -> Result<(), MeasureFailure> {
        match self.budget.is_interrupted() {
            true => Err(MeasureFailure::new(FailureKind::Timeout, "interrupted")),
            false => Ok(()),
        }
    }
}

impl Measurer for Interruptible<'_, '_> {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.ensure_running()?;
        self.measurer.check(candidate)
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<Sample, MeasureFailure> {
        self.ensure_running()?;
        self.measurer.sample(candidate, portion)
    }
}
