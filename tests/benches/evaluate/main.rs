//! Compares the tuner's choices with an exhaustive search, and writes the results as JSON.
//!
//! Runs on a GPU with NVRTC, or with `--device host` on small problems of gridguard's kernels.
#![allow(dead_code, reason = "the test of this program includes it")]

pub(crate) mod choices;
pub(crate) mod exhaustive;
mod summary;
pub(crate) mod untuned;
/// Makes gridguard's kernels workloads of the tuner, as the command does.
#[path = "../../../autotune/cli/src/measure/workload.rs"]
mod workload;

use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use clap::Parser;
use gridguard::profile::{Environment, L2, Policy, Submission};
use gridguard::{Guard, catalog};
use gridguard_autotune::{Measurer, Space};
use gridguard_problems::Problem;
use serde::Serialize;

use self::exhaustive::{EvaluationEffort, evaluate};
use self::summary::{EvaluationSummary, ProblemEvaluation, ProblemSet};
use self::untuned::UntunedProblem;
use self::workload::LocalBench;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Compares the tuner's choices with an exhaustive search
#[derive(Parser)]
pub(crate) struct Options {
    /// Ordinal of the device, or `host`
    #[arg(long, value_name = "N|host", default_value = "0")]
    device: String,
    /// GPU of the catalogue whose limits the host uses
    #[arg(long, value_name = "NAME", default_value = "h200")]
    gpu: String,
    /// Only this kernel; repeat for several
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    /// How times are taken: cold or hot L2 cache, a dash, eager or graph launches
    #[arg(long, value_name = "L2-SUBMISSION", default_value = "cold-eager", value_parser = policy)]
    policy: Policy,
    /// Searches for each problem from its default
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Searches for each problem from other candidates: the slowest, and others spread over the ranking
    #[arg(long, value_name = "N", default_value_t = 4)]
    starts: u32,
    /// Pairs of samples that compare a final choice with the best
    #[arg(long, value_name = "N", default_value_t = 41, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Samples of each candidate in the exhaustive search; the first is dropped
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(2..))]
    samples: u32,
    /// Instead, compare the choices of this many processes that each tune the shipped problems
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    choices: Option<u32>,
    /// Tune each of these problems once, and print the choices as JSON
    #[arg(long, hide = true)]
    winners: bool,
    /// Time limit, for example 75s; problems, or processes, after it are counted, but not started
    #[arg(long, value_name = "TIME")]
    budget: Option<humantime::Duration>,
    /// Write all results to this file as JSON
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// All results.
#[derive(Serialize)]
pub(crate) struct EvaluationDocument {
    device: String,
    driver: String,
    compiler: String,
    tuner: String,
    date: String,
    policy: String,
    summary: EvaluationSummary,
    problems: Vec<ProblemEvaluation>,
    failed: Vec<String>,
    /// Problems that were not started.
    left: usize,
    wall_time_s: f64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match options.run(&mut io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(3)
        }
    }
}

impl Options {
    /// Evaluates all problems and writes the results. False if some are missing.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Outcome<bool> {
        if let Some(path) = &self.output {
            // Reported before anything is measured.
            fs::File::options().create(true).append(true).open(path)?;
        }
        if self.winners {
            writeln!(out, "{}", serde_json::to_string(&self.winners()?)?)?;
            return Ok(true);
        }
        if let Some(processes) = self.choices {
            let document = serde_json::to_string_pretty(&self.choices(processes)?)?;
            match &self.output {
                Some(path) => fs::write(path, document + "\n")?,
                None => writeln!(out, "{document}")?,
            }
            return Ok(true);
        }
        let document = self.document(out)?;
        if let Some(path) = &self.output {
            fs::write(path, serde_json::to_string(&document)? + "\n")?;
        }
        for failed in &document.failed {
            writeln!(io::stderr(), "{failed}")?;
        }
        if !document.problems.is_empty() {
            writeln!(out, "{}", serde_json::to_string_pretty(&document.summary)?)?;
        }
        Ok(document.failed.is_empty() && document.left == 0)
    }

    fn document(&self, out: &mut dyn Write) -> Outcome<EvaluationDocument> {
        let (guard, device) = self.guard()?;
        let wanted = self.problems(&guard)?;
        let bench = LocalBench::new(Arc::clone(&guard), self.policy, false)?;
        let Environment { driver, compiler, tuner } = guard.environment();
        let start = Instant::now();
        let limit = self.budget.map_or(Duration::MAX, Into::into);
        let mut left = wanted.len();
        let (mut problems, mut failed) = (Vec::new(), Vec::new());
        for problem in wanted {
            if start.elapsed() >= limit {
                break;
            }
            match self.evaluate(&bench, &guard, problem) {
                Ok(evaluation) => {
                    // The results are stored even if standard output is closed or full.
                    let _ = writeln!(out, "{evaluation}");
                    problems.push(evaluation);
                }
                Err(error) => failed.push(format!("{problem}: {error}")),
            }
            left -= 1;
        }
        Ok(EvaluationDocument {
            device,
            driver,
            compiler,
            tuner,
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            policy: self.policy.to_string(),
            summary: EvaluationSummary::new(&problems),
            problems,
            failed,
            left,
            wall_time_s: start.elapsed().as_secs_f64(),
        })
    }

    /// The guard of the device or host, and a name for the document.
    fn guard(&self) -> Outcome<(Arc<Guard>, String)> {
        if self.device == "host" {
            let limits = Arc::clone(&catalog::gpu(&self.gpu)?.limits);
            let name = format!("the host as {}", limits.name);
            return Ok((Arc::new(Guard::host(limits)), name));
        }
        let guard = Guard::cuda(self.device.parse()?)?;
        let name = format!("{} ({})", guard.limits().name, self.device);
        Ok((Arc::new(guard), name))
    }

    fn problems(&self, guard: &Guard) -> Outcome<Vec<EvaluationProblem>> {
        let (untuned, tuned) = match guard.is_cuda() {
            true => (UntunedProblem::of_device(), shipped()),
            false => (Vec::new(), Problem::small()),
        };
        let untuned = untuned.into_iter().map(EvaluationProblem::Untuned);
        let mut wanted: Vec<_> =
            untuned.chain(tuned.into_iter().map(EvaluationProblem::Tuned)).collect();
        let is_known = |name: &&String| wanted.iter().any(|problem| problem.kernel() == *name);
        if let Some(unknown) = self.kernels.iter().find(|name| !is_known(name)) {
            return Err(format!("there is no problem of kernel {unknown}").into());
        }
        let named = |kernel| self.kernels.iter().any(|named| named == kernel);
        wanted.retain(|problem| self.kernels.is_empty() || named(problem.kernel()));
        Ok(wanted)
    }

    fn evaluate(
        &self,
        bench: &LocalBench,
        guard: &Arc<Guard>,
        problem: EvaluationProblem,
    ) -> Outcome<ProblemEvaluation> {
        let (mut measurer, space) = problem.open(bench, guard)?;
        let effort = EvaluationEffort {
            exhaustive_samples: self.samples,
            runs: self.runs,
            other_starts: self.starts,
            paired_rounds: self.pairs,
        };
        let evaluation = evaluate(measurer.as_mut(), &space, effort)?;
        Ok(ProblemEvaluation { problem: problem.to_string(), set: problem.set(), evaluation })
    }
}

/// The first five shipped problems of five kernels.
fn shipped() -> Vec<Problem> {
    let all = Problem::shipped();
    let of_kernel =
        |name| all.iter().filter(move |problem| problem.kernel() == name).take(5).copied();
    let kernels = ["temporal_attention", "rms_norm", "softmax", "layer_norm", "geglu"];
    kernels.into_iter().flat_map(of_kernel).collect()
}

/// A problem of one of the two sets.
#[derive(Clone, Copy)]
enum EvaluationProblem {
    /// A kernel whose default was chosen by measuring.
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

    fn open(&self, bench: &LocalBench, guard: &Arc<Guard>) -> Outcome<(Box<dyn Measurer>, Space)> {
        let mut measurer = match self {
            Self::Tuned(problem) => bench.open(problem)?,
            Self::Untuned(problem) => problem.open(bench, guard)?,
        };
        let space = Space::new(measurer.configurations()?);
        Ok((measurer, space))
    }
}

impl fmt::Display for EvaluationProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tuned(problem) => problem.fmt(f),
            Self::Untuned(problem) => problem.fmt(f),
        }
    }
}

fn policy(text: &str) -> Result<Policy, String> {
    let all = [L2::Cold, L2::Hot].into_iter().flat_map(|l2| {
        [Submission::Eager, Submission::Graph].map(|submission| Policy { l2, submission })
    });
    all.into_iter()
        .find(|policy| policy.to_string() == text)
        .ok_or_else(|| "expected cold or hot, a dash, eager or graph".into())
}
