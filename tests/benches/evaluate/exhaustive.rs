//! Evaluates the tuner on one problem against an exhaustive search.

use gridguard::profile::Objective;
use gridguard_autotune::{
    Budget, Candidate, Error, FailureKind, MeasureFailure, Measurer, Portion, Samples, Space, tune,
};
use serde::Serialize;

/// How much an evaluation measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvaluationEffort {
    /// Samples of every candidate in the exhaustive search, the first one dropped: at least two.
    pub(crate) exhaustive_samples: u32,
    /// Searches of the tuner from the default.
    pub(crate) runs: u32,
    /// Searches from other candidates: the slowest, and others spread evenly over the ranking.
    pub(crate) other_starts: u32,
    /// Rounds of a paired comparison of two candidates.
    pub(crate) paired_rounds: u32,
}

impl Default for EvaluationEffort {
    fn default() -> Self {
        Self { exhaustive_samples: 25, runs: 3, other_starts: 4, paired_rounds: 41 }
    }
}

/// How the tuner did on one problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Evaluation {
    /// Candidates that could be timed.
    pub(crate) candidates: u64,
    /// The fastest candidate of the exhaustive search.
    pub(crate) best: Candidate,
    /// Its median there, in nanoseconds.
    pub(crate) best_ns: f64,
    /// The default's median there, in nanoseconds.
    pub(crate) default_ns: f64,
    /// The default's time over the best's, remeasured; `None` if the default is the best.
    pub(crate) default_against_best: Option<PairedRatio>,
    /// Samples of the exhaustive search.
    pub(crate) exhaustive_evaluations: u64,
    /// The tuner's searches from the default.
    pub(crate) runs: Vec<SearchRun>,
    /// The tuner's searches with another candidate as the default.
    pub(crate) runs_from_others: Vec<SearchRun>,
    /// What the searches chose, each choice once.
    pub(crate) choices: Vec<FinalChoice>,
}

/// One search of the tuner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SearchRun {
    /// Its choice.
    pub(crate) winner: Candidate,
    /// Samples that it took.
    pub(crate) evaluations: u64,
    /// The regret of its choice.
    pub(crate) regret: f64,
    /// The choice's time over that of the candidate that the search began with, both remeasured,
    /// interleaved.
    pub(crate) against_start: f64,
}

/// A candidate that one search or several chose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FinalChoice {
    /// The candidate.
    pub(crate) candidate: Candidate,
    /// The searches that chose it.
    pub(crate) searches: usize,
    /// Its time over that of the exhaustive search's best, remeasured after the first of them; `None` if
    /// it is the best, whose regret is zero without a measurement.
    pub(crate) against_best: Option<PairedRatio>,
}

impl FinalChoice {
    /// How much slower it is than the best, as a fraction; zero if it is no slower.
    pub(crate) fn regret(&self) -> f64 {
        self.against_best.map_or(0.0, PairedRatio::regret)
    }
}

/// The time of one candidate over another's, from pairs of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct PairedRatio {
    /// The median.
    pub(crate) median: f64,
    /// The ends of its confidence interval at 95 % or more.
    pub(crate) low: f64,
    /// As [`Self::low`].
    pub(crate) high: f64,
    /// The pairs.
    pub(crate) pairs: u64,
}

impl PairedRatio {
    /// Takes pairs of samples and drops the first pair. The order within a pair alternates, because the
    /// first sample may affect the second.
    ///
    /// # Errors
    ///
    /// As [`Measurer::sample`].
    pub(crate) fn measure(
        measurer: &mut dyn Measurer,
        one: &Candidate,
        other: &Candidate,
        rounds: u32,
    ) -> Result<Self, MeasureFailure> {
        let mut ratios = Vec::new();
        for round in 0..=rounds {
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
        let none = || MeasureFailure::new(FailureKind::Launch, "no time was measured");
        let ratios = Samples::new(ratios).ok_or_else(none)?;
        let [low, high] = ratios.median_interval();
        Ok(Self { median: ratios.median(), low, high, pairs: ratios.count() })
    }

    /// How much slower the first is, as a fraction; zero if it is no slower.
    pub(crate) fn regret(self) -> f64 {
        (self.median - 1.0).max(0.0)
    }
}

/// Why there is no evaluation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EvaluateError {
    /// The tuner found nothing.
    #[error(transparent)]
    Tune(#[from] Error),
    /// A candidate that had passed its check failed.
    #[error("a candidate failed during the measurement: {0}")]
    Failure(#[from] MeasureFailure),
}

/// An exhaustive search: every candidate measured equally often.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExhaustiveSearch {
    /// The candidates that could be timed and their medians in nanoseconds, the default first.
    pub(crate) medians: Vec<(Candidate, f64)>,
    /// Samples that it took.
    pub(crate) evaluations: u64,
}

impl ExhaustiveSearch {
    /// Checks all candidates of `space` and takes `samples` of each correct one, interleaved in a
    /// rotating order.
    ///
    /// # Errors
    ///
    /// [`EvaluateError`] if the default does not run, or a candidate fails after its check.
    pub(crate) fn new(
        measurer: &mut dyn Measurer,
        space: &Space,
        samples: u32,
    ) -> Result<Self, EvaluateError> {
        let default = space.default().ok_or_else(Error::no_candidate)?;
        measurer.check(default).map_err(Error::of_default)?;
        let others = space.candidates().iter().skip(1);
        let correct = others.filter(|candidate| measurer.check(candidate).is_ok());
        let timed: Vec<Candidate> = core::iter::once(default).chain(correct).cloned().collect();
        let mut times = vec![Vec::new(); timed.len()];
        for round in 0..samples {
            for place in (0..timed.len()).cycle().skip(length(round)).take(timed.len()) {
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
    pub(crate) fn best(&self) -> Option<&(Candidate, f64)> {
        self.medians.iter().min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// How much slower a choice is than the best; `None` if it is the best. Both are remeasured, so
    /// that the best does not profit from the luck that made it the best.
    ///
    /// # Errors
    ///
    /// As [`Measurer::sample`].
    pub(crate) fn against_best(
        &self,
        measurer: &mut dyn Measurer,
        choice: &Candidate,
        rounds: u32,
    ) -> Result<Option<PairedRatio>, MeasureFailure> {
        match self.best() {
            Some((best, _)) if best != choice => {
                PairedRatio::measure(measurer, choice, best, rounds).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Up to `starts` candidates but the default: the slowest, and others at equal distances in the
    /// ranking.
    pub(crate) fn other_starts(&self, starts: u32) -> Vec<&Candidate> {
        let mut ranking: Vec<&(Candidate, f64)> = self.medians.iter().skip(1).collect();
        ranking.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let starts = length(starts).min(ranking.len());
        let place = |start| start * ranking.len() / starts;
        (0..starts).filter_map(|start| ranking.get(place(start))).map(|(one, _)| one).collect()
    }
}

/// Searches exhaustively, then runs the tuner as often as `effort` says, and remeasures each of its
/// choices.
///
/// # Errors
///
/// As [`ExhaustiveSearch::new`], or if a search fails.
pub(crate) fn evaluate(
    measurer: &mut dyn Measurer,
    space: &Space,
    effort: EvaluationEffort,
) -> Result<Evaluation, EvaluateError> {
    let objective = Objective::Throughput;
    let mut space = space.clone();
    space.restrict(objective);
    let exhaustive = ExhaustiveSearch::new(measurer, &space, effort.exhaustive_samples)?;
    let ends = exhaustive.best().cloned().zip(exhaustive.medians.first().cloned());
    let ((best, best_ns), (default, default_ns)) = ends.ok_or_else(Error::no_candidate)?;
    let rounds = effort.paired_rounds;
    let mut choices = Choices::new(&exhaustive, rounds);
    let mut search = |space: &Space| -> Result<SearchRun, EvaluateError> {
        let budget = Budget::default();
        let outcome = tune(measurer, &mut space.clone(), objective, &budget, &mut ())?;
        let (winner, evaluations) = (outcome.winner, outcome.evaluations);
        let regret = choices.regret(measurer, &winner)?;
        let against_start = match winner == outcome.default {
            true => 1.0,
            false => PairedRatio::measure(measurer, &winner, &outcome.default, rounds)?.median,
        };
        Ok(SearchRun { winner, evaluations, regret, against_start })
    };
    let runs = (0..effort.runs).map(|_| search(&space)).collect::<Result<_, _>>()?;
    let starts = exhaustive.other_starts(effort.other_starts).into_iter();
    let from_other = |start: &Candidate| {
        let mut space = space.clone();
        space.make_default(start);
        search(&space)
    };
    let runs_from_others = starts.map(from_other).collect::<Result<_, _>>()?;
    let choices = choices.choices;
    Ok(Evaluation {
        candidates: count(exhaustive.medians.len()),
        default_against_best: exhaustive.against_best(measurer, &default, rounds)?,
        best,
        best_ns,
        default_ns,
        exhaustive_evaluations: exhaustive.evaluations,
        runs,
        runs_from_others,
        choices,
    })
}

/// The final choices of the searches so far.
pub(crate) struct Choices<'a> {
    exhaustive: &'a ExhaustiveSearch,
    rounds: u32,
    pub(crate) choices: Vec<FinalChoice>,
}

impl<'a> Choices<'a> {
    pub(crate) const fn new(exhaustive: &'a ExhaustiveSearch, rounds: u32) -> Self {
        Self { exhaustive, rounds, choices: Vec::new() }
    }

    /// The regret of a search's choice, which is measured for the first search that makes it: more
    /// measurements of the same choice would not be independent.
    pub(crate) fn regret(
        &mut self,
        measurer: &mut dyn Measurer,
        winner: &Candidate,
    ) -> Result<f64, MeasureFailure> {
        if let Some(known) = self.choices.iter_mut().find(|known| known.candidate == *winner) {
            known.searches += 1;
            return Ok(known.regret());
        }
        let against_best = self.exhaustive.against_best(measurer, winner, self.rounds)?;
        let new = FinalChoice { candidate: winner.clone(), searches: 1, against_best };
        let regret = new.regret();
        self.choices.push(new);
        Ok(regret)
    }
}

/// A time in nanoseconds.
fn sample(measurer: &mut dyn Measurer, candidate: &Candidate) -> Result<f64, MeasureFailure> {
    Ok(measurer.sample(candidate, Portion::Sequence)?.time_ns)
}

fn length(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
