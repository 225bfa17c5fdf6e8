//! Statistics of an evaluation, for each problem and over all of them.

use std::fmt;

use gridguard_autotune::{Evaluation, Samples, SearchRun, duration};
use serde::Serialize;

/// Statistics over all problems.
#[derive(Serialize)]
pub(super) struct EvaluationSummary {
    problems: usize,
    /// Searches that start from the kernel's default.
    tuned: SearchStatistics,
    /// Searches that start from the slowest candidate.
    tuned_from_slowest: SearchStatistics,
    /// Regret for shapes that are not in the profile, as fractions.
    between_median: f64,
    between_worst: f64,
}

/// Statistics over searches; regrets, samples and times are fractions.
#[derive(Serialize)]
pub(super) struct SearchStatistics {
    searches: usize,
    regret_median: f64,
    regret_p95: f64,
    regret_worst: f64,
    /// The tuner's samples divided by those of the exhaustive search.
    evaluations_median: f64,
    evaluations_worst: f64,
    evaluations_of_all: f64,
    /// Searches that chose differently from most searches of the same problem.
    flips: usize,
    /// The most for one problem.
    flips_worst: usize,
    flip_regret_worst: f64,
    /// The largest time of a choice divided by the default's.
    against_default_worst: f64,
    /// The default's time divided by the choice's.
    speedup_median: f64,
    speedup_best: f64,
}

/// The evaluation of one problem.
#[derive(Serialize)]
pub(super) struct ProblemEvaluation {
    pub(super) problem: String,
    #[serde(flatten)]
    pub(super) evaluation: Evaluation,
}

/// The regret for a shape that is not in the profile.
#[derive(Serialize)]
pub(super) struct UntunedShape {
    pub(super) problem: String,
    pub(super) matched: String,
    pub(super) regret: f64,
}

impl fmt::Display for ProblemEvaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evaluation { candidates, best_ns, default_ns, runs, runs_from_slowest, .. } =
            &self.evaluation;
        let worst =
            |runs: &[SearchRun]| 100.0 * runs.iter().map(|run| run.regret).fold(0.0, f64::max);
        write!(
            f,
            "{}: {candidates} candidates, best {}, default {}; regret {:.2} %, flips {} of {}; \
             from the slowest candidate: regret {:.2} %, flips {}",
            self.problem,
            duration(*best_ns),
            duration(*default_ns),
            worst(runs),
            SearchRun::flips(runs),
            runs.len(),
            worst(runs_from_slowest),
            SearchRun::flips(runs_from_slowest),
        )
    }
}

impl fmt::Display for UntunedShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, regret {:.2} %", self.problem, self.matched, self.regret * 100.0)
    }
}

impl EvaluationSummary {
    pub(super) fn new(problems: &[ProblemEvaluation], between: &[UntunedShape]) -> Self {
        let elsewhere = Samples::new(between.iter().map(|one| one.regret));
        Self {
            problems: problems.len(),
            tuned: SearchStatistics::new(problems, |evaluation| &evaluation.runs),
            tuned_from_slowest: SearchStatistics::new(problems, |evaluation| {
                &evaluation.runs_from_slowest
            }),
            between_median: statistic(&elsewhere, Samples::median),
            between_worst: statistic(&elsewhere, Samples::greatest),
        }
    }
}

impl fmt::Display for EvaluationSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { problems, tuned, tuned_from_slowest, between_median, between_worst } = self;
        writeln!(f, "{problems} problems\nfrom the kernel's default\n{tuned}")?;
        write!(f, "from the slowest candidate\n{tuned_from_slowest}")?;
        if between_median.is_finite() {
            let (median, worst) = (percent(*between_median), percent(*between_worst));
            write!(f, "\nshapes not in the profile\n  regret      median {median}, worst {worst}")?;
        }
        Ok(())
    }
}

impl SearchStatistics {
    fn new(problems: &[ProblemEvaluation], runs_of: fn(&Evaluation) -> &Vec<SearchRun>) -> Self {
        let all =
            || problems.iter().map(|problem| (&problem.evaluation, runs_of(&problem.evaluation)));
        let runs = || all().flat_map(|(_, runs)| runs);
        let regrets = Samples::new(runs().map(|run| run.regret));
        let efforts = || {
            all().flat_map(|(evaluation, runs)| {
                runs.iter().map(move |run| (run.evaluations, evaluation.exhaustive_evaluations))
            })
        };
        let shares = Samples::new(efforts().map(|(taken, of)| fraction(taken, of)));
        let (taken, of) = efforts().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let speedups = Samples::new(runs().map(|run| run.against_default.recip()));
        let flipped = all().flat_map(|(_, runs)| {
            let usual = SearchRun::usual(runs).map(|(run, _)| &run.winner);
            runs.iter().filter(move |run| Some(&run.winner) != usual).map(|run| run.regret)
        });
        Self {
            searches: runs().count(),
            regret_median: statistic(&regrets, Samples::median),
            regret_p95: statistic(&regrets, |samples| samples.quantile(0.95)),
            regret_worst: statistic(&regrets, Samples::greatest),
            evaluations_median: statistic(&shares, Samples::median),
            evaluations_worst: statistic(&shares, Samples::greatest),
            evaluations_of_all: fraction(taken, of),
            flips: all().map(|(_, runs)| SearchRun::flips(runs)).sum(),
            flips_worst: all().map(|(_, runs)| SearchRun::flips(runs)).max().unwrap_or(0),
            flip_regret_worst: flipped.fold(0.0, f64::max),
            against_default_worst: statistic(&speedups, |samples| samples.least().recip()),
            speedup_median: statistic(&speedups, Samples::median),
            speedup_best: statistic(&speedups, Samples::greatest),
        }
    }
}

impl fmt::Display for SearchStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  regret      median {}, 95 % below {}, worst {}\n  \
             samples     {} of the exhaustive search, worst {}\n  \
             flips       {} of {} searches, at most {} for one problem, regret up to {}\n  \
             vs default  {} of its time at worst; {:.3} times as fast in the median, {:.3} at best",
            percent(self.regret_median),
            percent(self.regret_p95),
            percent(self.regret_worst),
            percent(self.evaluations_of_all),
            percent(self.evaluations_worst),
            self.flips,
            self.searches,
            self.flips_worst,
            percent(self.flip_regret_worst),
            percent(self.against_default_worst),
            self.speedup_median,
            self.speedup_best,
        )
    }
}

/// A statistic of the samples; not a number if there is none.
fn statistic(samples: &Option<Samples>, statistic: fn(&Samples) -> f64) -> f64 {
    samples.as_ref().map_or(f64::NAN, statistic)
}

fn percent(fraction: f64) -> String {
    format!("{:.2} %", fraction * 100.0)
}

#[allow(clippy::as_conversions, reason = "counts of samples, which doubles hold exactly")]
fn fraction(part: u64, all: u64) -> f64 {
    part as f64 / all as f64
}
