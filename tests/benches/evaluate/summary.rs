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
    /// Shapes that are not in the profile, and their regret, as fractions.
    between: usize,
    between_median: Option<f64>,
    between_worst: Option<f64>,
}

/// Statistics over the problems of one set. Regrets are fractions; a statistic of nothing is null.
#[derive(Serialize)]
struct SetStatistics {
    problems: usize,
    candidates: u64,
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
    /// Choices with a confidence interval above 1: slower than the best.
    surely_slower: usize,
    /// Over the independent regrets.
    regret_median: Option<f64>,
    regret_p95: Option<f64>,
    regret_worst: Option<f64>,
    /// Over all distinct choices, those that are the best included.
    choice_regret_median: Option<f64>,
    choice_regret_p95: Option<f64>,
    from_default: SearchStatistics,
    from_others: SearchStatistics,
}

/// Statistics over searches that start alike.
#[derive(Serialize)]
struct SearchStatistics {
    searches: usize,
    regret_worst: Option<f64>,
    /// The tuner's samples divided by the samples of the exhaustive search.
    evaluations_worst: Option<f64>,
    evaluations_of_all: f64,
    /// The start's time divided by the choice's.
    speedup_median: Option<f64>,
    speedup_least: Option<f64>,
    speedup_best: Option<f64>,
    /// Searches that chose differently from most searches of the same problem, and their regret.
    flips: usize,
    flip_regret_worst: f64,
}

/// The evaluation of one problem.
#[derive(Serialize)]
pub(super) struct ProblemEvaluation {
    pub(super) problem: String,
    pub(super) set: ProblemSet,
    #[serde(flatten)]
    pub(super) evaluation: Evaluation,
}

/// The regret for a shape that is not in the profile.
#[derive(Serialize)]
pub(super) struct UntunedShape {
    pub(super) problem: String,
    pub(super) matched: String,
    pub(super) regret: f64,
    /// The profile's choice against the best; `None` if it is the best.
    pub(super) against_best: Option<PairedRatio>,
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
             {best} the best; regret at most {}",
            self.problem,
            duration(*best_ns),
            duration(*default_ns),
            runs.len() + runs_from_others.len(),
            choices.len(),
            percent(worst),
        )
    }
}

impl fmt::Display for UntunedShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, regret {}", self.problem, self.matched, percent(self.regret))
    }
}

impl EvaluationSummary {
    pub(super) fn new(problems: &[ProblemEvaluation], between: &[UntunedShape]) -> Self {
        let set = |set| {
            let of_set = problems.iter().filter(|problem| problem.set == set);
            SetStatistics::new(&of_set.map(|problem| &problem.evaluation).collect::<Vec<_>>())
        };
        let elsewhere = Samples::new(between.iter().map(|one| one.regret));
        Self {
            untuned_defaults: set(ProblemSet::UntunedDefaults),
            tuned_defaults: set(ProblemSet::TunedDefaults),
            between: between.len(),
            between_median: elsewhere.as_ref().map(Samples::median),
            between_worst: elsewhere.as_ref().map(Samples::greatest),
        }
    }
}

impl fmt::Display for EvaluationSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { untuned_defaults, tuned_defaults, between, between_median, between_worst } =
            self;
        let sets = [
            ("whose defaults nobody tuned", untuned_defaults),
            ("with tuned defaults", tuned_defaults),
        ];
        for (place, (what, set)) in sets.into_iter().filter(|(_, set)| set.problems > 0).enumerate()
        {
            let newline = if place == 0 { "" } else { "\n" };
            write!(f, "{newline}{} problems {what}\n{set}", set.problems)?;
        }
        if *between > 0 {
            let (median, worst) = (some_percent(*between_median), some_percent(*between_worst));
            write!(f, "\n{between} shapes not in the profile\n  ")?;
            write!(f, "regret      median {median}, worst {worst}")?;
        }
        Ok(())
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
        let all = Samples::new(choices().map(FinalChoice::regret));
        let p95 = |samples: &Samples| samples.quantile(0.95);
        let from_default = SearchStatistics::new(evaluations, |evaluation| &evaluation.runs);
        let from_others =
            SearchStatistics::new(evaluations, |evaluation| &evaluation.runs_from_others);
        Self {
            problems: evaluations.len(),
            candidates: evaluations.iter().map(|evaluation| evaluation.candidates).sum(),
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
            surely_slower: measured().filter(|ratio| ratio.low > 1.0).count(),
            regret_median: independent.as_ref().map(Samples::median),
            regret_p95: independent.as_ref().map(p95),
            regret_worst: independent.as_ref().map(Samples::greatest),
            choice_regret_median: all.as_ref().map(Samples::median),
            choice_regret_p95: all.as_ref().map(p95),
            from_default,
            from_others,
        }
    }
}

impl fmt::Display for SetStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  defaults    {} are the best; slower by {} in the median, {} at worst\n  \
             choices     {} distinct of {} searches; {} are the best, chosen by {} searches\n  \
             regret      of the {} others: median {}, 95 % below {}, worst {}; {} surely slower",
            self.default_is_best,
            some_percent(self.default_regret_median),
            some_percent(self.default_regret_worst),
            self.distinct_choices,
            self.searches,
            self.choices_that_are_best,
            self.searches_that_chose_best,
            self.independent_regrets,
            some_percent(self.regret_median),
            some_percent(self.regret_p95),
            some_percent(self.regret_worst),
            self.surely_slower,
        )?;
        writeln!(f, "  from the default\n{}", self.from_default)?;
        write!(f, "  from other candidates\n{}", self.from_others)
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
        let regrets = Samples::new(runs().map(|run| run.regret));
        let flipped = evaluations.iter().flat_map(|evaluation| {
            let runs = runs_of(evaluation);
            let usual = SearchRun::usual(runs).map(|(run, _)| &run.winner);
            runs.iter().filter(move |run| Some(&run.winner) != usual).map(|run| run.regret)
        });
        Self {
            searches: runs().count(),
            regret_worst: regrets.as_ref().map(Samples::greatest),
            evaluations_worst: shares.as_ref().map(Samples::greatest),
            evaluations_of_all: fraction(taken, of),
            speedup_median: speedups.as_ref().map(Samples::median),
            speedup_least: speedups.as_ref().map(Samples::least),
            speedup_best: speedups.as_ref().map(Samples::greatest),
            flips: flipped.clone().count(),
            flip_regret_worst: flipped.fold(0.0, f64::max),
        }
    }
}

impl fmt::Display for SearchStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |speedup: Option<f64>| {
            speedup.map_or("none".to_owned(), |speedup| format!("{speedup:.3}"))
        };
        write!(
            f,
            "    samples   {} of the exhaustive search, worst {}\n    \
             flips     {} of {} searches, regret up to {}; worst regret of all {}\n    \
             speed     {} times the start's in the median, {} at worst, {} at best",
            percent(self.evaluations_of_all),
            some_percent(self.evaluations_worst),
            self.flips,
            self.searches,
            percent(self.flip_regret_worst),
            some_percent(self.regret_worst),
            times(self.speedup_median),
            times(self.speedup_least),
            times(self.speedup_best),
        )
    }
}

fn percent(fraction: f64) -> String {
    format!("{:.2} %", fraction * 100.0)
}

fn some_percent(fraction: Option<f64>) -> String {
    fraction.map_or("none".to_owned(), percent)
}

/// A part of a whole; zero of nothing.
#[allow(clippy::as_conversions, reason = "counts of samples, which doubles hold exactly")]
fn fraction(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}
