//! `gridguard evaluate`: compares the tuner's choices with an exhaustive search.

mod summary;
mod untuned;

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use gridguard::profile::{Environment, Objective, Policy, Profile};
use gridguard_autotune::{
    Budget, EvaluateError, EvaluationEffort, ExhaustiveSearch, Measurer, PairedRatio,
    ProblemMeasurer, Space, evaluate,
};
use gridguard_files::check_output;
use gridguard_kernels::bench::Problem;
use serde::Serialize;

use self::summary::{EvaluationSummary, ProblemEvaluation, ProblemSet, UntunedShape};
use self::untuned::UntunedProblem;
use crate::error::{CommandError, Exit};
use crate::files::{load_profile, write_file};
use crate::interrupt;
use crate::measure::args::{self, DeviceSelection, KernelFilter};
use crate::measure::target::{Target, note_cache, select_targets};
use crate::measure::workload::LocalBench;
use crate::output::{Format, OutputArgs, json, note, write};

#[derive(Args)]
pub(crate) struct Evaluate {
    /// Device ordinal, or `host` [default: the first device]
    #[arg(long, value_name = "N|host", value_parser = args::device)]
    device: Option<DeviceSelection>,
    /// GPU of the catalogue whose limits the host uses [default: h200]
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    #[command(flatten)]
    kernels: KernelFilter,
    /// How times are taken: cold or hot L2 cache, eager or graph launches
    #[arg(long, value_name = "L2-SUBMISSION", default_value = "cold-eager", value_parser = args::policy)]
    policy: Policy,
    /// Searches for each problem from its default
    #[arg(long, value_name = "N", default_value_t = EvaluationEffort::default().runs, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Searches for each problem from other candidates: the slowest, and others spread over the ranking
    #[arg(long, value_name = "N", default_value_t = EvaluationEffort::default().other_starts)]
    starts: u32,
    /// Pairs of samples that compare a final choice with the best
    #[arg(
        long, value_name = "N", default_value_t = EvaluationEffort::default().paired_rounds,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pairs: u32,
    /// Time limit, such as 75s; problems after it are not begun, and counted
    #[arg(long, value_name = "TIME", value_parser = args::duration)]
    budget: Option<Duration>,
    /// Samples of each candidate in the exhaustive search; the first is dropped
    #[arg(
        long, value_name = "N", default_value_t = EvaluationEffort::default().exhaustive_samples,
        value_parser = clap::value_parser!(u32).range(2..)
    )]
    samples: u32,
    /// Profile to evaluate for shapes between those that it contains
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Write all results to this file as JSON
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    stdout: OutputArgs,
}

/// All results: the document on standard output and in the output file.
#[derive(Serialize)]
struct EvaluationDocument {
    device: String,
    driver: String,
    compiler: String,
    tuner: String,
    date: String,
    policy: String,
    summary: EvaluationSummary,
    problems: Vec<ProblemEvaluation>,
    between: Vec<UntunedShape>,
    failed: Vec<String>,
    /// Problems that were not begun within the time limit, or at all.
    left: usize,
    /// A problem whose evaluation was interrupted is not among the problems.
    interrupted: bool,
    wall_time_s: f64,
}

impl Evaluate {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        if self.device == Some(DeviceSelection::All) {
            return Err(CommandError::Invalid(
                "evaluate uses one device: name its ordinal, or host".into(),
            ));
        }
        let target = select_targets(self.device, self.gpu.as_deref())?.targets.into_iter().next();
        let no_target = || CommandError::Failed("no device to evaluate on".into());
        let target = target.ok_or_else(no_target)?;
        let wanted = self.problems(&target)?;
        if let Some(path) = &self.output {
            check_output(path).map_err(CommandError::publish(path))?;
        }
        note_cache(std::slice::from_ref(&target));
        let bench = LocalBench::new(target.guard()?, self.policy)?;
        let profile = self.profile(&target)?;
        // Queried before anything is measured, so that a failure loses no results.
        let Environment { driver, compiler, tuner } = target.environment()?;
        let interrupt = interrupt::flag()?;
        let budget = Budget { interrupt: Some(interrupt), ..Budget::default() };
        let start = Instant::now();
        let is_over = || {
            let is_late = self.budget.is_some_and(|budget| start.elapsed() >= budget);
            is_late || interrupt.load(Ordering::Relaxed)
        };
        let mut left = wanted.len();
        let mut printed = Ok(());
        let (mut problems, mut between, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for problem in wanted {
            if is_over() {
                break;
            }
            match self.evaluate(&bench, problem, &budget) {
                Ok(evaluation) => {
                    self.print(&evaluation, &mut printed)?;
                    problems.push(evaluation);
                }
                Err(CommandError::Evaluate(EvaluateError::Ended)) => break,
                Err(error) => failed.push(format!("{problem}: {error}")),
            }
            left -= 1;
        }
        if let Some(profile) = &profile {
            let mut wanted = Problem::between();
            wanted.retain(|problem| self.kernels.matches(problem.kernel()));
            left += wanted.len();
            for problem in wanted {
                if is_over() {
                    break;
                }
                match self.untuned_shape(&bench, &target, profile, &problem) {
                    Ok(shape) => {
                        self.print(&shape, &mut printed)?;
                        between.push(shape);
                    }
                    Err(error) => failed.push(format!("{problem}: {error}")),
                }
                left -= 1;
            }
        }
        failed.iter().for_each(note);
        let document = EvaluationDocument {
            device: target.to_string(),
            driver,
            compiler,
            tuner,
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            policy: self.policy.to_string(),
            summary: EvaluationSummary::new(&problems, &between),
            problems,
            between,
            failed,
            left,
            interrupted: interrupt.load(Ordering::Relaxed),
            wall_time_s: start.elapsed().as_secs_f64(),
        };
        let json = json(&document)? + "\n";
        // Before standard output, which may be full.
        let stored = self.output.as_ref().map_or(Ok(()), |path| write_file(path, &json));
        if self.stdout.format == Format::Json {
            write(&json)?;
        } else if !document.problems.is_empty() {
            self.print(&document.summary, &mut printed)?;
        }
        stored?;
        printed?;
        Ok(match () {
            () if document.interrupted => Exit::Interrupted,
            () if !document.failed.is_empty() || document.left > 0 => Exit::No,
            () => Exit::Yes,
        })
    }

    fn problems(&self, target: &Target) -> Result<Vec<EvaluationProblem>, CommandError> {
        let (untuned, tuned) = match target.is_host() {
            true => (UntunedProblem::of_host(), Problem::small()),
            false => (UntunedProblem::of_device(), Problem::evaluation()),
        };
        let untuned = untuned.into_iter().map(EvaluationProblem::Untuned);
        let mut wanted: Vec<_> =
            untuned.chain(tuned.into_iter().map(EvaluationProblem::Tuned)).collect();
        let known: BTreeSet<&str> = wanted.iter().map(|problem| problem.kernel()).collect();
        for given in &self.kernels.kernels {
            if !known.contains(given.as_str()) {
                self.kernels.check()?;
                let known = known.into_iter().collect::<Vec<_>>().join(", ");
                let message = format!("evaluate has problems for {known} only");
                return Err(CommandError::Invalid(message));
            }
        }
        wanted.retain(|problem| self.kernels.matches(problem.kernel()));
        Ok(wanted)
    }

    /// Prints a result as text, unless the format is JSON. Without an output file, an error such as a
    /// closed pipe ends the evaluation; with one, the first error is put into `printed`.
    fn print(
        &self,
        line: &impl Display,
        printed: &mut Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        if self.stdout.format == Format::Json {
            return Ok(());
        }
        let written = writeln!(io::stdout(), "{line}");
        if self.output.is_none() {
            return written.map_err(CommandError::io("writing the results"));
        }
        if printed.is_ok() {
            *printed = CommandError::check_write(written, "writing the results");
        }
        Ok(())
    }

    fn profile(&self, target: &Target) -> Result<Option<Profile>, CommandError> {
        let Some(path) = &self.profile else { return Ok(None) };
        let parsed = load_profile(path)?.ok_or_else(|| CommandError::missing_file(path))?;
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
        bench: &LocalBench,
        problem: EvaluationProblem,
        budget: &Budget<'_>,
    ) -> Result<ProblemEvaluation, CommandError> {
        let (mut measurer, space) = problem.open(bench)?;
        let effort = EvaluationEffort {
            exhaustive_samples: self.samples,
            runs: self.runs,
            other_starts: self.starts,
            paired_rounds: self.pairs,
        };
        let measurer: &mut dyn Measurer = measurer.as_mut();
        let evaluation = evaluate(measurer, &space, Objective::Throughput, budget, effort)?;
        Ok(ProblemEvaluation { problem: problem.to_string(), set: problem.set(), evaluation })
    }

    /// The regret of the profile's choice for a shape that the profile does not contain.
    fn untuned_shape(
        &self,
        bench: &LocalBench,
        target: &Target,
        profile: &Profile,
        problem: &Problem,
    ) -> Result<UntunedShape, CommandError> {
        let key = problem.key(&target.limits, self.policy, Objective::Throughput)?;
        let sizes: Vec<u64> = problem.shape().into_iter().map(|(_, size)| size).collect();
        let found = profile.lookup(&key, &sizes);
        let (mut measurer, mut space) = EvaluationProblem::Tuned(*problem).open(bench)?;
        let no_default = || CommandError::Failed("no candidate is legal".into());
        let default = space.default().cloned().ok_or_else(no_default)?;
        let choice = found.entry.and_then(|entry| space.add(&entry.parameters, entry.choice));
        let choice = choice.unwrap_or(default);
        let measurer: &mut dyn Measurer = measurer.as_mut();
        let search = ExhaustiveSearch::new(measurer, &space, self.samples)?;
        let against_best = search.against_best(measurer, &choice, self.pairs)?;
        Ok(UntunedShape {
            problem: problem.to_string(),
            matched: found.matched.to_string(),
            regret: against_best.map_or(0.0, PairedRatio::regret),
            against_best,
        })
    }
}

/// A problem of one of the two sets.
#[derive(Clone, Copy)]
enum EvaluationProblem {
    /// The default of its kernel was chosen by measuring.
    Tuned(Problem),
    Untuned(UntunedProblem),
}

impl EvaluationProblem {
    fn kernel(&self) -> &'static str {
        match self {
            Self::Tuned(problem) => problem.kernel(),
            Self::Untuned(problem) => problem.kernel(),
        }
    }

    const fn set(&self) -> ProblemSet {
        match self {
            Self::Tuned(_) => ProblemSet::TunedDefaults,
            Self::Untuned(_) => ProblemSet::UntunedDefaults,
        }
    }

    fn open(&self, bench: &LocalBench) -> Result<(Box<dyn ProblemMeasurer>, Space), CommandError> {
        let mut measurer = match self {
            Self::Tuned(problem) => bench.open(problem)?,
            Self::Untuned(problem) => untuned::open(*problem, bench)?,
        };
        let space = Space::new(measurer.configurations()?);
        Ok((measurer, space))
    }
}

impl Display for EvaluationProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tuned(problem) => problem.fmt(f),
            Self::Untuned(problem) => problem.fmt(f),
        }
    }
}
