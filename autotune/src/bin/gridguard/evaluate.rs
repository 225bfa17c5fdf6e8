//! `gridguard evaluate`: how good the tuner is on a device, against an exhaustive search.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use clap::Args;
use gridguard::profile::{self, Match, Objective, Policy, Profile};
use gridguard_autotune::{
    Budget, Effort, Evaluation, Measurer, Oracle, Samples, Served, Space, duration, evaluate,
};
use gridguard_kernels::exercise::Problem;
use serde::Serialize;

use crate::failure::{Answer, Failure};
use crate::interrupt;
use crate::requests::json;
use crate::tune::target::{Target, targets};
use crate::tune::values::{self, DeviceSelection};
use crate::tune::workload::Bench;

#[derive(Args)]
pub(crate) struct Evaluate {
    /// A device by ordinal, or the host
    #[arg(long, value_name = "N|host", value_parser = values::device)]
    device: Option<DeviceSelection>,
    /// The GPU of the catalogue whose limits the host takes on
    #[arg(long, value_name = "NAME", default_value = "h200")]
    gpu: String,
    /// A kernel, or several; without it five
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    /// How times are taken
    #[arg(long, value_name = "L2-SUBMISSION", default_value = "cold-eager", value_parser = values::policy)]
    policy: Policy,
    /// Searches of each problem
    #[arg(long, value_name = "N", default_value_t = Effort::default().runs)]
    runs: u32,
    /// Samples of each candidate in the exhaustive search
    #[arg(long, value_name = "N", default_value_t = Effort::default().exhaustive_samples)]
    samples: u32,
    /// A profile, to see what its choices cost for shapes between those that it has
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Writes all figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// All figures.
#[derive(Serialize)]
struct Document {
    device: String,
    driver: String,
    compiler: String,
    tuner: String,
    date: String,
    policy: String,
    summary: Summary,
    problems: Vec<OfProblem>,
    between: Vec<Between>,
    failed: Vec<String>,
    wall_time_s: f64,
}

/// The figures that count; times and regrets as fractions.
#[derive(Default, Serialize)]
struct Summary {
    problems: usize,
    searches: usize,
    regret_median: f64,
    regret_p95: f64,
    regret_worst: f64,
    /// Samples of the tuner over those of the exhaustive search.
    evaluations_median: f64,
    evaluations_worst: f64,
    flips: usize,
    /// The largest regret of a search that ended with another choice than most of its problem.
    flip_regret_worst: f64,
    /// The largest time of a choice over the default's.
    against_default_worst: f64,
    /// How much faster than the default the choices are, over all problems, and the best.
    speedup_median: f64,
    speedup_best: f64,
    between_median: f64,
    between_worst: f64,
}

#[derive(Serialize)]
struct OfProblem {
    problem: String,
    flips: usize,
    worst_regret: f64,
    #[serde(flatten)]
    evaluation: Evaluation,
}

/// A shape that was not tuned.
#[derive(Serialize)]
struct Between {
    problem: String,
    matched: String,
    regret: f64,
}

impl Evaluate {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let (all, _) = targets(self.device, &self.gpu)?;
        let target = all.into_iter().next().ok_or(Failure::NoTarget)?;
        let bench = Bench::new(target.guard()?, self.policy)?;
        let profile = self.profile(&target)?;
        let interrupt = interrupt::flag()?;
        let budget = Budget { interrupt: Some(interrupt), ..Budget::default() };
        let start = Instant::now();
        let (mut problems, mut between, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for problem in self.problems(&target) {
            match self.evaluate(&bench, &problem, &budget) {
                Ok(one) => {
                    println(&one.line())?;
                    problems.push(one);
                }
                Err(failure) => failed.push(format!("{problem}: {failure}")),
            }
        }
        if let Some(profile) = &profile {
            for problem in Problem::between().into_iter().filter(|one| self.takes(one)) {
                match self.between(&bench, &target, profile, &problem) {
                    Ok(one) => {
                        println(&one.line())?;
                        between.push(one);
                    }
                    Err(failure) => failed.push(format!("{problem}: {failure}")),
                }
            }
        }
        for failure in &failed {
            eprintln!("{failure}");
        }
        let environment = target.environment()?;
        let document = Document {
            device: target.to_string(),
            driver: environment.driver,
            compiler: environment.compiler,
            tuner: environment.tuner,
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            policy: self.policy.to_string(),
            summary: Summary::new(&problems, &between),
            problems,
            between,
            failed,
            wall_time_s: start.elapsed().as_secs_f64(),
        };
        println(&document.summary.text())?;
        if let Some(path) = &self.output {
            let name = path.display().to_string();
            std::fs::write(path, json(&document)? + "\n").map_err(Failure::io(name))?;
        }
        Ok(if document.failed.is_empty() { Answer::Yes } else { Answer::No })
    }

    fn takes(&self, problem: &Problem) -> bool {
        self.kernels.is_empty() || self.kernels.iter().any(|kernel| kernel == problem.kernel())
    }

    fn problems(&self, target: &Target) -> Vec<Problem> {
        let all = if target.is_host() { Problem::small() } else { Problem::evaluation() };
        all.into_iter().filter(|problem| self.takes(problem)).collect()
    }

    fn profile(&self, target: &Target) -> Result<Option<Profile>, Failure> {
        let Some(path) = &self.profile else { return Ok(None) };
        let missing = || Failure::Missing { path: path.clone() };
        let parsed = profile::load(path).map_err(Failure::profile(path))?.ok_or_else(missing)?;
        let environment = target.environment()?;
        let (profile, findings) =
            Profile::from_document(parsed.document, &target.identity, &environment);
        for finding in findings {
            eprintln!("{}: {finding}", path.display());
        }
        Ok(Some(profile))
    }

    fn evaluate(
        &self,
        bench: &Bench,
        problem: &Problem,
        budget: &Budget<'_>,
    ) -> Result<OfProblem, Failure> {
        let (mut served, space) = open(bench, problem)?;
        let effort =
            Effort { exhaustive_samples: self.samples, runs: self.runs, ..Effort::default() };
        let measurer: &mut dyn Measurer = served.as_mut();
        let evaluation = evaluate(measurer, &space, Objective::Throughput, budget, effort)?;
        Ok(OfProblem {
            problem: problem.to_string(),
            flips: evaluation.flips(),
            worst_regret: evaluation.worst_regret(),
            evaluation,
        })
    }

    /// What the profile's choice costs for a shape that it does not have.
    fn between(
        &self,
        bench: &Bench,
        target: &Target,
        profile: &Profile,
        problem: &Problem,
    ) -> Result<Between, Failure> {
        let key = problem.key(&target.limits, self.policy, Objective::Throughput)?;
        let sizes: Vec<u64> = problem.shape().into_iter().map(|(_, size)| size).collect();
        let answer = profile.lookup(&key, &sizes);
        let (mut served, mut space) = open(bench, problem)?;
        let default = space.default().cloned().ok_or(Failure::NoTarget)?;
        let choice = answer.entry.and_then(|entry| space.add(&entry.parameters, entry.choice));
        let choice = choice.unwrap_or(default);
        let measurer: &mut dyn Measurer = served.as_mut();
        let oracle = Oracle::new(measurer, &space, self.samples)?;
        let regret = oracle.regret(measurer, &choice, Effort::default().paired_rounds)?;
        Ok(Between { problem: problem.to_string(), matched: words(answer.matched), regret })
    }
}

fn open(bench: &Bench, problem: &Problem) -> Result<(Box<dyn Served>, Space), Failure> {
    let mut served = bench.open(&problem.to_string())?;
    let space = Space::new(served.configurations()?);
    Ok((served, space))
}

fn words(matched: Match) -> String {
    matched.to_string()
}

impl OfProblem {
    fn line(&self) -> String {
        let Evaluation { candidates, best_ns, default_ns, .. } = &self.evaluation;
        format!(
            "{}: {candidates} candidates, best {}, default {}, regret {:.2} %, {} of {} searches \
             ended elsewhere",
            self.problem,
            duration(*best_ns),
            duration(*default_ns),
            self.worst_regret * 100.0,
            self.flips,
            self.evaluation.runs.len(),
        )
    }
}

impl Between {
    fn line(&self) -> String {
        format!("{}: {}, regret {:.2} %", self.problem, self.matched, self.regret * 100.0)
    }
}

impl Summary {
    fn new(problems: &[OfProblem], between: &[Between]) -> Self {
        let runs = || problems.iter().flat_map(|problem| &problem.evaluation.runs);
        let regrets = Samples::new(runs().map(|run| run.regret));
        let shares = Samples::new(problems.iter().flat_map(|problem| {
            let all = problem.evaluation.exhaustive_evaluations;
            problem.evaluation.runs.iter().map(move |run| fraction(run.evaluations, all))
        }));
        let speedups = Samples::new(runs().map(|run| run.against_default.recip()));
        let elsewhere = Samples::new(between.iter().map(|one| one.regret));
        let flipped = problems.iter().flat_map(|problem| {
            let usual = problem.evaluation.usual().map(|(run, _)| &run.winner);
            let other = problem.evaluation.runs.iter();
            other.filter(move |run| Some(&run.winner) != usual).map(|run| run.regret)
        });
        let of = |samples: &Option<Samples>, figure: fn(&Samples) -> f64| {
            samples.as_ref().map_or(f64::NAN, figure)
        };
        Self {
            problems: problems.len(),
            searches: runs().count(),
            regret_median: of(&regrets, Samples::median),
            regret_p95: of(&regrets, |samples| samples.quantile(0.95)),
            regret_worst: of(&regrets, Samples::greatest),
            evaluations_median: of(&shares, Samples::median),
            evaluations_worst: of(&shares, Samples::greatest),
            flips: problems.iter().map(|problem| problem.flips).sum(),
            flip_regret_worst: flipped.fold(0.0, f64::max),
            against_default_worst: of(&speedups, |samples| samples.least().recip()),
            speedup_median: of(&speedups, Samples::median),
            speedup_best: of(&speedups, Samples::greatest),
            between_median: of(&elsewhere, Samples::median),
            between_worst: of(&elsewhere, Samples::greatest),
        }
    }

    fn text(&self) -> String {
        let percent = |fraction: f64| format!("{:.2} %", fraction * 100.0);
        let mut text = format!(
            "{} problems, {} searches\nregret              median {}, 95 % below {}, worst {}\n\
             evaluations         median {} of the exhaustive search, worst {}\n\
             ended elsewhere     {} searches, regret up to {}\n\
             against the default {} of its time at worst, {:.3} times as fast in the median, {:.3} at best",
            self.problems,
            self.searches,
            percent(self.regret_median),
            percent(self.regret_p95),
            percent(self.regret_worst),
            percent(self.evaluations_median),
            percent(self.evaluations_worst),
            self.flips,
            percent(self.flip_regret_worst),
            percent(self.against_default_worst),
            self.speedup_median,
            self.speedup_best,
        );
        if self.between_median.is_finite() {
            let (median, worst) = (percent(self.between_median), percent(self.between_worst));
            text += &format!("\nshapes not tuned    regret median {median}, worst {worst}");
        }
        text
    }
}

#[allow(clippy::as_conversions, reason = "counts of samples, which doubles hold exactly")]
fn fraction(part: u64, all: u64) -> f64 {
    part as f64 / all as f64
}

fn println(line: &str) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}").map_err(Failure::io("writing the figures"))
}
