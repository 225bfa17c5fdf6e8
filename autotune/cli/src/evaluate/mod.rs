//! `gridguard evaluate`: how good the tuner is on a device, against an exhaustive search.

mod figures;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use clap::Args;
use gridguard::profile::{self, Objective, Policy, Profile};
use gridguard_autotune::{
    Budget, EvaluateError, EvaluationEffort, ExhaustiveSearch, Measurer, ProblemMeasurer, Space,
    evaluate,
};
use gridguard_kernels::bench::Problem;
use serde::Serialize;

use self::figures::{Between, OfProblem, Summary};
use crate::error::{CommandError, Exit, check_writable};
use crate::interrupt;
use crate::output::{json, note};
use crate::tune::selection::check_kernels;
use crate::tune::target::{Selected, Target, targets};
use crate::tune::values::{self, DeviceSelection};
use crate::tune::workload::Bench;

#[derive(Args)]
pub(crate) struct Evaluate {
    /// A device by ordinal, or the host
    #[arg(long, value_name = "N|host", value_parser = values::device)]
    device: Option<DeviceSelection>,
    /// The GPU of the catalogue whose limits the host takes on, h200 where none is named
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// A kernel, or several; without it five
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    /// How times are taken
    #[arg(long, value_name = "L2-SUBMISSION", default_value = "cold-eager", value_parser = values::policy)]
    policy: Policy,
    /// Searches of each problem
    #[arg(long, value_name = "N", default_value_t = EvaluationEffort::default().runs, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Samples of each candidate in the exhaustive search, of which the first is dropped
    #[arg(
        long, value_name = "N", default_value_t = EvaluationEffort::default().exhaustive_samples,
        value_parser = clap::value_parser!(u32).range(2..)
    )]
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
    /// What was not measured to its end then is not among the problems.
    interrupted: bool,
    wall_time_s: f64,
}

impl Evaluate {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        if self.device == Some(DeviceSelection::All) {
            return Err(CommandError::Invalid("one device is evaluated: name one, or host".into()));
        }
        let Selected { targets, .. } = targets(self.device, self.gpu.as_deref())?;
        let target = targets
            .into_iter()
            .next()
            .ok_or(CommandError::Failed("there is no device to measure on".into()))?;
        let wanted = self.problems(&target)?;
        if let Some(path) = &self.output {
            check_writable(path)?;
        }
        let bench = Bench::new(target.guard()?, self.policy)?;
        let profile = self.profile(&target)?;
        let interrupt = interrupt::flag()?;
        let budget = Budget { interrupt: Some(interrupt), ..Budget::default() };
        let start = Instant::now();
        let (mut problems, mut between, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for problem in wanted {
            match self.evaluate(&bench, &problem, &budget) {
                Ok(one) => {
                    self.println(&one.line())?;
                    problems.push(one);
                }
                Err(CommandError::Evaluate(EvaluateError::Ended)) => break,
                Err(failure) => failed.push(format!("{problem}: {failure}")),
            }
        }
        if let Some(profile) = &profile {
            for problem in Problem::between().into_iter().filter(|one| self.takes(one)) {
                if interrupt.load(Ordering::Relaxed) {
                    break;
                }
                match self.between(&bench, &target, profile, &problem) {
                    Ok(one) => {
                        self.println(&one.line())?;
                        between.push(one);
                    }
                    Err(failure) => failed.push(format!("{problem}: {failure}")),
                }
            }
        }
        for failure in &failed {
            note(format_args!("{failure}"));
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
            interrupted: interrupt.load(Ordering::Relaxed),
            wall_time_s: start.elapsed().as_secs_f64(),
        };
        if !document.problems.is_empty() {
            self.println(&document.summary.text())?;
        }
        if let Some(path) = &self.output {
            let name = path.display().to_string();
            std::fs::write(path, json(&document)? + "\n").map_err(CommandError::io(name))?;
        }
        Ok(match () {
            () if document.interrupted => Exit::Interrupted,
            () if !document.failed.is_empty() => Exit::No,
            () => Exit::Yes,
        })
    }

    fn takes(&self, problem: &Problem) -> bool {
        self.kernels.is_empty() || self.kernels.iter().any(|kernel| kernel == problem.kernel())
    }

    fn problems(&self, target: &Target) -> Result<Vec<Problem>, CommandError> {
        check_kernels(&self.kernels)?;
        let all = if target.is_host() { Problem::small() } else { Problem::evaluation() };
        let known: BTreeSet<&str> = all.iter().map(Problem::kernel).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        let wanted: Vec<Problem> = all.into_iter().filter(|one| self.takes(one)).collect();
        if wanted.is_empty() {
            return Err(CommandError::Invalid(format!(
                "evaluated are problems of {known}: name one"
            )));
        }
        Ok(wanted)
    }

    /// Tells of figures. Without a file to keep them in nobody needs those that nobody reads.
    fn println(&self, line: &str) -> Result<(), CommandError> {
        let written = writeln!(io::stdout(), "{line}");
        match self.output {
            Some(_) => CommandError::check_write(written, "writing the figures"),
            None => written.map_err(CommandError::io("writing the figures")),
        }
    }

    fn profile(&self, target: &Target) -> Result<Option<Profile>, CommandError> {
        let Some(path) = &self.profile else { return Ok(None) };
        let missing = || CommandError::missing_file(path);
        let parsed =
            profile::load(path).map_err(CommandError::profile(path))?.ok_or_else(missing)?;
        let environment = target.environment()?;
        let (profile, findings) =
            Profile::from_document(parsed.document, &target.identity, &environment);
        for finding in findings {
            note(format_args!("{}: {finding}", path.display()));
        }
        Ok(Some(profile))
    }

    fn evaluate(
        &self,
        bench: &Bench,
        problem: &Problem,
        budget: &Budget<'_>,
    ) -> Result<OfProblem, CommandError> {
        let (mut served, space) = open(bench, problem)?;
        let effort = EvaluationEffort {
            exhaustive_samples: self.samples,
            runs: self.runs,
            ..EvaluationEffort::default()
        };
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
    ) -> Result<Between, CommandError> {
        let key = problem.key(&target.limits, self.policy, Objective::Throughput)?;
        let sizes: Vec<u64> = problem.shape().into_iter().map(|(_, size)| size).collect();
        let answer = profile.lookup(&key, &sizes);
        let (mut served, mut space) = open(bench, problem)?;
        let default = space
            .default()
            .cloned()
            .ok_or(CommandError::Failed("there is no device to measure on".into()))?;
        let choice = answer.entry.and_then(|entry| space.add(&entry.parameters, entry.choice));
        let choice = choice.unwrap_or(default);
        let measurer: &mut dyn Measurer = served.as_mut();
        let oracle = ExhaustiveSearch::new(measurer, &space, self.samples)?;
        let regret = oracle.regret(measurer, &choice, EvaluationEffort::default().paired_rounds)?;
        Ok(Between { problem: problem.to_string(), matched: answer.matched.to_string(), regret })
    }
}

fn open(
    bench: &Bench,
    problem: &Problem,
) -> Result<(Box<dyn ProblemMeasurer>, Space), CommandError> {
    let mut served = bench.open(&problem.to_string())?;
    let space = Space::new(served.configurations()?);
    Ok((served, space))
}
