//! Statistics of an evaluation, for each problem and over all of them.

use std::fmt;

use gridguard_autotune::{Samples, duration};
use serde::Serialize;

use super::exhaustive::{Evaluation, FinalChoice, PairedRatio, SearchRun};

/// Which problems: their defaults decide how much a search can gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProblemSet {
    /// Kernels whose defaults were chosen by measuring.
    TunedDefaults,
    /// Kernels whose defaults nobody tuned.
    UntunedDefaults,
}

/// Statistics over all problems.
#[derive(Serialize)]
pub(super) struct EvaluationSummary {
    untuned_defaults: SetStatistics,
    tuned_defaults: SetStatistics,
}

/// Statistics over the problems of one set. Regrets are fractions; a statistic of nothing is null.
#[derive(Serialize)]
struct SetStatistics {
    problems: usize,
    /// Problems whose default is the exhaustive search's best.
    default_is_best: usize,
    /// How much slower the defaults are than the best.
    default_regret_median: Option<f64>,
    default_regret_worst: Option<f64>,
    searches: usize,
    /// Final choices, each counted once for its problem.
    distinct_choices: usize,
    /// Those that are the exhaustive search's best: their regret is zero without a measurement.
    choices_that_are_best: usize,
    searches_that_chose_best: usize,
    /// The other distinct choices: the regrets that were measured, each once, in pairs with the
    /// best. No more regrets than these are independent.
    independent_regrets: usize,
    /// Over the independent regrets.
    regret_median: Option<f64>,
    regret_p95: Option<f64>,
    regret_worst: Option<f64>,
    from_default: SearchStatistics,
    from_others: SearchStatistics,
}

/// Statistics over searches that start alike.
#[derive(Serialize)]
struct SearchStatistics {
    searches: usize,
    /// The tuner's samples divided by the samples of the exhaustive search.
    evaluations_worst: Option<f64>,
    evaluations_of_all: f64,
    /// The start's time divided by the choice's.
    speedup_median: Option<f64>,
    speedup_best: Option<f64>,
    /// Searches that chose differently from most searches of the same problem.
    flips: usize,
}

/// The evaluation of one problem.
#[derive(Serialize)]
pub(super) struct ProblemEvaluation {
    pub(super) problem: String,
    pub(super) set: ProblemSet,
    #[serde(flatten)]
    pub(super) evaluation: Evaluation,
}

impl fmt::Display for ProblemEvaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evaluation { candidates, best_ns, default_ns, runs, runs_from_others, choices, .. } =
            &self.evaluation;
        let best = choices.iter().filter(|choice| choice.against_best.is_none()).count();
        let worst = choices.iter().map(FinalChoice::regret).fold(0.0, f64::max);
        write!(
            f,
            "{}: {candidates} candidates, best {}, default {}; {} searches, {} distinct choices, \
             {best} the best; regret at most {:.2} %",
            self.problem,
            duration(*best_ns),
            duration(*default_ns),
            runs.len() + runs_from_others.len(),
            choices.len(),
            worst * 100.0,
        )
    }
}

impl EvaluationSummary {
    pub(super) fn new(problems: &[ProblemEvaluation]) -> Self {
        let set = |set| {
            let of_set = problems.iter().filter(|problem| problem.set == set);
            SetStatistics::new(&of_set.map(|problem| &problem.evaluation).collect::<Vec<_>>())
        };
        Self {
            untuned_defaults: set(ProblemSet::UntunedDefaults),
            tuned_defaults: set(ProblemSet::TunedDefaults),
        }
    }
}

impl SetStatistics {
    fn new(evaluations: &[&Evaluation]) -> Self {
        let choices = || evaluations.iter().flat_map(|evaluation| &evaluation.choices);
        let best = || choices().filter(|choice| choice.against_best.is_none());
        let measured = || choices().filter_map(|choice| choice.against_best);
        let default = |evaluation: &&Evaluation| {
            evaluation.default_against_best.map_or(0.0, PairedRatio::regret)
        };
        let defaults = Samples::new(evaluations.iter().map(default));
        let independent = Samples::new(measured().map(PairedRatio::regret));
        let from_default = SearchStatistics::new(evaluations, |evaluation| &evaluation.runs);
        let from_others =
            SearchStatistics::new(evaluations, |evaluation| &evaluation.runs_from_others);
        Self {
            problems: evaluations.len(),
            default_is_best: evaluations
                .iter()
                .filter(|evaluation| evaluation.default_against_best.is_none())
                .count(),
            default_regret_median: defaults.as_ref().map(Samples::median),
            default_regret_worst: defaults.as_ref().map(Samples::greatest),
            searches: from_default.searches + from_others.searches,
            distinct_choices: choices().count(),
            choices_that_are_best: best().count(),
            searches_that_chose_best: best().map(|choice| choice.searches).sum(),
            independent_regrets: measured().count(),
            regret_median: independent.as_ref().map(Samples::median),
            regret_p95: independent.as_ref().map(|samples| samples.quantile(0.95)),
            regret_worst: independent.as_ref().map(Samples::greatest),
            from_default,
            from_others,
        }
    }
}

impl SearchStatistics {
    fn new(evaluations: &[&Evaluation], runs_of: fn(&Evaluation) -> &Vec<SearchRun>) -> Self {
        let runs = || evaluations.iter().flat_map(|evaluation| runs_of(evaluation));
        let efforts = || {
            evaluations.iter().flat_map(|evaluation| {
                let of = evaluation.exhaustive_evaluations;
                runs_of(evaluation).iter().map(move |run| (run.evaluations, of))
            })
        };
        let shares = Samples::new(efforts().map(|(taken, of)| fraction(taken, of)));
        let (taken, of) = efforts().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let speedups = Samples::new(runs().map(|run| run.against_start.recip()));
        Self {
            searches: runs().count(),
            evaluations_worst: shares.as_ref().map(Samples::greatest),
            evaluations_of_all: fraction(taken, of),
            speedup_median: speedups.as_ref().map(Samples::median),
            speedup_best: speedups.as_ref().map(Samples::greatest),
            flips: evaluations.iter().map(|evaluation| flips(runs_of(evaluation))).sum(),
        }
    }
}

/// How many searches ended with another choice than the most frequent one.
pub(crate) fn flips(runs: &[SearchRun]) -> usize {
    let times = |run: &SearchRun| runs.iter().filter(|one| one.winner == run.winner).count();
    runs.len() - runs.iter().map(times).max().unwrap_or(0)
}

/// A part of a whole; zero of nothing.
#[allow(clippy::as_conversions, reason = "counts of samples, which doubles hold exactly")]
fn fraction(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}
