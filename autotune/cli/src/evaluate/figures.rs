//! The figures of an evaluation: of each problem, and of all of them.

use gridguard_autotune::{Evaluation, Samples, SearchRun, duration};
use serde::Serialize;

/// The figures that count.
#[derive(Serialize)]
pub(super) struct Summary {
    problems: usize,
    /// As it is.
    tuned: Figures,
    /// With the slowest candidate for a default.
    tuned_from_slowest: Figures,
    /// Of shapes that were not tuned, as fractions.
    between_median: f64,
    between_worst: f64,
}

/// Times, regrets and samples as fractions.
#[derive(Serialize)]
pub(super) struct Figures {
    searches: usize,
    regret_median: f64,
    regret_p95: f64,
    regret_worst: f64,
    /// Samples of the tuner over those of the exhaustive search.
    evaluations_median: f64,
    evaluations_worst: f64,
    evaluations_of_all: f64,
    /// Searches that ended with another choice than most of their problem.
    flips: usize,
    /// The most of one problem.
    flips_worst: usize,
    flip_regret_worst: f64,
    /// The largest time of a choice over the default's.
    against_default_worst: f64,
    /// How much faster than the default the choices are.
    speedup_median: f64,
    speedup_best: f64,
}

#[derive(Serialize)]
pub(super) struct OfProblem {
    pub(super) problem: String,
    #[serde(flatten)]
    pub(super) evaluation: Evaluation,
}

/// A shape that was not tuned.
#[derive(Serialize)]
pub(super) struct Between {
    pub(super) problem: String,
    pub(super) matched: String,
    pub(super) regret: f64,
}

impl OfProblem {
    pub(super) fn line(&self) -> String {
        let Evaluation { candidates, best_ns, default_ns, runs, runs_from_slowest, .. } =
            &self.evaluation;
        let worst =
            |runs: &[SearchRun]| 100.0 * runs.iter().map(|run| run.regret).fold(0.0, f64::max);
        format!(
            "{}: {candidates} candidates, best {}, default {}; regret {:.2} %, flips {} of {}; \
             from the slowest: regret {:.2} %, flips {}",
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

impl Between {
    pub(super) fn line(&self) -> String {
        format!("{}: {}, regret {:.2} %", self.problem, self.matched, self.regret * 100.0)
    }
}

impl Summary {
    pub(super) fn new(problems: &[OfProblem], between: &[Between]) -> Self {
        let elsewhere = Samples::new(between.iter().map(|one| one.regret));
        Self {
            problems: problems.len(),
            tuned: Figures::new(problems, |evaluation| &evaluation.runs),
            tuned_from_slowest: Figures::new(problems, |evaluation| &evaluation.runs_from_slowest),
            between_median: figure(&elsewhere, Samples::median),
            between_worst: figure(&elsewhere, Samples::greatest),
        }
    }

    pub(super) fn text(&self) -> String {
        let Self { problems, tuned, tuned_from_slowest, between_median, between_worst } = self;
        let mut text = format!(
            "{problems} problems\nas it is\n{}\nwith the slowest candidate for a default\n{}",
            tuned.text(),
            tuned_from_slowest.text()
        );
        if between_median.is_finite() {
            let (median, worst) = (percent(*between_median), percent(*between_worst));
            text += &format!("\nshapes not tuned\n  regret        median {median}, worst {worst}");
        }
        text
    }
}

impl Figures {
    fn new(problems: &[OfProblem], runs_of: fn(&Evaluation) -> &Vec<SearchRun>) -> Self {
        let all =
            || problems.iter().map(|problem| (&problem.evaluation, runs_of(&problem.evaluation)));
        let runs = || all().flat_map(|(_, runs)| runs);
        let regrets = Samples::new(runs().map(|run| run.regret));
        let share = |(evaluation, runs): (&'_ Evaluation, &'_ Vec<SearchRun>)| {
            let exhaustive = evaluation.exhaustive_evaluations;
            runs.iter().map(|run| fraction(run.evaluations, exhaustive)).collect::<Vec<_>>()
        };
        let shares = Samples::new(all().flat_map(share));
        let exhaustive = all().map(|(one, runs)| one.exhaustive_evaluations * count(runs)).sum();
        let speedups = Samples::new(runs().map(|run| run.against_default.recip()));
        let flipped = all().flat_map(|(_, runs)| {
            let usual = SearchRun::usual(runs).map(|(run, _)| &run.winner);
            runs.iter().filter(move |run| Some(&run.winner) != usual).map(|run| run.regret)
        });
        Self {
            searches: runs().count(),
            regret_median: figure(&regrets, Samples::median),
            regret_p95: figure(&regrets, |samples| samples.quantile(0.95)),
            regret_worst: figure(&regrets, Samples::greatest),
            evaluations_median: figure(&shares, Samples::median),
            evaluations_worst: figure(&shares, Samples::greatest),
            evaluations_of_all: fraction(runs().map(|run| run.evaluations).sum(), exhaustive),
            flips: all().map(|(_, runs)| SearchRun::flips(runs)).sum(),
            flips_worst: all().map(|(_, runs)| SearchRun::flips(runs)).max().unwrap_or(0),
            flip_regret_worst: flipped.fold(0.0, f64::max),
            against_default_worst: figure(&speedups, |samples| samples.least().recip()),
            speedup_median: figure(&speedups, Samples::median),
            speedup_best: figure(&speedups, Samples::greatest),
        }
    }

    fn text(&self) -> String {
        format!(
            "  regret        median {}, 95 % below {}, worst {}\n  \
             samples       {} of the exhaustive search, worst {}\n  \
             flips         {} of {} searches, {} of one problem at most, regret up to {}\n  \
             to default    {} of its time at worst, {:.3} times as fast in the median, {:.3} at best",
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

fn figure(samples: &Option<Samples>, figure: fn(&Samples) -> f64) -> f64 {
    samples.as_ref().map_or(f64::NAN, figure)
}

fn percent(fraction: f64) -> String {
    format!("{:.2} %", fraction * 100.0)
}

fn count(runs: &[SearchRun]) -> u64 {
    u64::try_from(runs.len()).unwrap_or(u64::MAX)
}

#[allow(clippy::as_conversions, reason = "counts of samples, which doubles hold exactly")]
fn fraction(part: u64, all: u64) -> f64 {
    part as f64 / all as f64
}
