//! `gridguard evaluate`: how good the tuner is on a device, against an exhaustive search.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use clap::Args;
use gridguard::profile::{self, Objective, Policy, Profile};
use gridguard_autotune::{
    Budget, Effort, Evaluation, Measurer, Oracle, Run, Samples, Served, Space, duration, evaluate,
};
use gridguard_kernels::exercise::Problem;
use serde::Serialize;

use crate::failure::{Answer, Failure};
use crate::format::json;
use crate::interrupt;
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

/// The figures that count.
#[derive(Serialize)]
struct Summary {
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
struct Figures {
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
struct OfProblem {
    problem: String,
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
        Ok(OfProblem { problem: problem.to_string(), evaluation })
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
        Ok(Between { problem: problem.to_string(), matched: answer.matched.to_string(), regret })
    }
}

fn open(bench: &Bench, problem: &Problem) -> Result<(Box<dyn Served>, Space), Failure> {
    let mut served = bench.open(&problem.to_string())?;
    let space = Space::new(served.configurations()?);
    Ok((served, space))
}

impl OfProblem {
    fn line(&self) -> String {
        let Evaluation { candidates, best_ns, default_ns, runs, runs_from_slowest, .. } =
            &self.evaluation;
        let worst = |runs: &[Run]| 100.0 * runs.iter().map(|run| run.regret).fold(0.0, f64::max);
        format!(
            "{}: {candidates} candidates, best {}, default {}; regret {:.2} %, flips {} of {}; \
             from the slowest: regret {:.2} %, flips {}",
            self.problem,
            duration(*best_ns),
            duration(*default_ns),
            worst(runs),
            Run::flips(runs),
            runs.len(),
            worst(runs_from_slowest),
            Run::flips(runs_from_slowest),
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
        let elsewhere = Samples::new(between.iter().map(|one| one.regret));
        Self {
            problems: problems.len(),
            tuned: Figures::new(problems, |evaluation| &evaluation.runs),
            tuned_from_slowest: Figures::new(problems, |evaluation| &evaluation.runs_from_slowest),
            between_median: figure(&elsewhere, Samples::median),
            between_worst: figure(&elsewhere, Samples::greatest),
        }
    }

    fn text(&self) -> String {
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
    fn new(problems: &[OfProblem], runs_of: fn(&Evaluation) -> &Vec<Run>) -> Self {
        let all =
            || problems.iter().map(|problem| (&problem.evaluation, runs_of(&problem.evaluation)));
        let runs = || all().flat_map(|(_, runs)| runs);
        let regrets = Samples::new(runs().map(|run| run.regret));
        let share = |(evaluation, runs): (&'_ Evaluation, &'_ Vec<Run>)| {
            let exhaustive = evaluation.exhaustive_evaluations;
            runs.iter().map(|run| fraction(run.evaluations, exhaustive)).collect::<Vec<_>>()
        };
        let shares = Samples::new(all().flat_map(share));
        let exhaustive = all().map(|(one, runs)| one.exhaustive_evaluations * count(runs)).sum();
        let speedups = Samples::new(runs().map(|run| run.against_default.recip()));
        let flipped = all().flat_map(|(_, runs)| {
            let usual = Run::usual(runs).map(|(run, _)| &run.winner);
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
            flips: all().map(|(_, runs)| Run::flips(runs)).sum(),
            flips_worst: all().map(|(_, runs)| Run::flips(runs)).max().unwrap_or(0),
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

fn count(runs: &[Run]) -> u64 {
    u64::try_from(runs.len()).unwrap_or(u64::MAX)
}

#[allow(clippy::as_conversions, reason = "counts of samples, which doubles hold exactly")]
fn fraction(part: u64, all: u64) -> f64 {
    part as f64 / all as f64
}

fn println(line: &str) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}").map_err(Failure::io("writing the figures"))
}
