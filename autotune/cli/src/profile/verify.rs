//! `gridguard profile verify`: re-measures a profile, and reports choices that lost or whose time has changed.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use gridguard::profile::{
    Backend, Document, Entry, Key, Named, ParsedProfile, StoredChoice, Summary,
};
use gridguard::{Choice, DeviceLimits, Plan};
use gridguard_autotune::{
    Budget, Candidate, FailureKind, MeasureFailure, Measurer, Portion, Remote, Samples, Space,
    duration, tune,
};
use gridguard_kernels::bench::{Problem, current_sources};
use serde::Serialize;

use super::drift::Drift;
use super::entry;
use crate::error::{CommandError, Exit};
use crate::interrupt;
use crate::measure::args::{self, DeviceSelection, KernelFilter};
use crate::measure::process::MeasuringProcess;
use crate::measure::progress::{DeviceProgress, ProgressBars};
use crate::measure::target::{Target, gpu_without_host, note_cache};
use crate::output::{OutputArgs, note};

#[derive(Args)]
pub(crate) struct Verify {
    /// Profile
    file: PathBuf,
    /// Device ordinal, or `host` [default: the first device, or host for a profile of the host]
    #[arg(long, value_name = "N|host", value_parser = args::device)]
    device: Option<DeviceSelection>,
    /// GPU of the catalogue whose limits the host uses [default: the GPU of the profile]
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    #[command(flatten)]
    kernels: KernelFilter,
    /// How much slower than the fastest a choice may be, and how far its time may have changed
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = args::percent)]
    tolerance: f64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct VerifyReport<'a> {
    file: String,
    device: String,
    tolerance: f64,
    verified: Vec<RowJson<'a>>,
    passed_over: Vec<SkippedJson<'a>>,
    /// Over the measured entries; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    median_regret: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worst_regret: Option<f64>,
    /// Choices that lost to a new one.
    above_tolerance: usize,
    drifted: usize,
    failed: usize,
    /// Entries whose measurement was not finished.
    left: usize,
    interrupted: bool,
}

#[derive(Serialize)]
struct RowJson<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    #[serde(flatten)]
    verified: Option<Verified>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Verified {
    fresh: Candidate,
    /// How much longer the entry's choice takes than the new choice, as a fraction.
    regret: f64,
    median_ns: u64,
    /// The change in the time of the entry's choice, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    drift: Option<Drift>,
}

#[derive(Serialize)]
struct SkippedJson<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    reason: String,
}

impl Verify {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let ParsedProfile { document, .. } = entry::read(&self.file)?;
        let target = self.target(&document)?;
        let (mut wanted, mut passed_over) = (Vec::new(), Vec::new());
        for entry in document.entries() {
            if !self.kernels.matches(&entry.key.kernel) {
                continue;
            }
            match problem_of(entry, &target) {
                Ok(problem) => wanted.push((problem, entry)),
                Err(reason) => {
                    note(format_args!("skipped: {}: {reason}", entry::subject(entry)));
                    passed_over.push(SkippedJson { entry, reason });
                }
            }
        }
        if wanted.is_empty() {
            let file = self.file.display();
            return Err(CommandError::Failed(format!("{file}: no entry can be measured")));
        }
        note_cache(std::slice::from_ref(&target));
        let interrupt = interrupt::flag()?;
        let bars = ProgressBars::new("verified", wanted.len());
        let mut verifier = Verifier {
            limits: &target.limits,
            tolerance: self.tolerance,
            process: MeasuringProcess::new(&target),
            interrupt,
            progress: bars.device(target.to_string()),
        };
        let verified = verifier.verify_all(&wanted, &bars);
        bars.clear();
        let regrets: Vec<f64> =
            verified.iter().filter_map(|row| Some(row.verified.as_ref()?.regret)).collect();
        let samples = Samples::new(regrets.iter().copied());
        let report = VerifyReport {
            file: self.file.display().to_string(),
            device: target.to_string(),
            tolerance: self.tolerance,
            above_tolerance: regrets.iter().filter(|regret| **regret > self.tolerance).count(),
            drifted: verified.iter().filter(|row| row.drift().is_some()).count(),
            median_regret: samples.as_ref().map(Samples::median),
            worst_regret: samples.as_ref().map(Samples::greatest),
            failed: verified.len() - regrets.len(),
            left: wanted.len() - verified.len(),
            interrupted: interrupt.load(Ordering::Relaxed),
            verified,
            passed_over,
        };
        self.output.print(&report, &report)?;
        Ok(match () {
            () if report.interrupted => Exit::Interrupted,
            () if report.above_tolerance > 0 || report.failed > 0 => Exit::No,
            () => Exit::Yes,
        })
    }

    /// The device to measure on, which must match the profile.
    fn target(&self, document: &Document) -> Result<Target, CommandError> {
        let gpu = self.gpu.as_deref().unwrap_or(&document.device().name);
        let target = match (self.device, document.device().backend) {
            (Some(DeviceSelection::All), _) => {
                return Err(CommandError::Invalid(
                    "verify uses one device: name its ordinal, or host".into(),
                ));
            }
            (Some(DeviceSelection::Host), _) | (None, Backend::Host) => Target::host(gpu)?,
            _ if self.gpu.is_some() => return Err(gpu_without_host()),
            (Some(DeviceSelection::Ordinal(ordinal)), _) => Target::device(ordinal)?,
            (None, Backend::Cuda) => Target::device(0)?,
        };
        let serves = document.device().serves(document.aliases(), &target.identity);
        serves.map_err(|mismatch| CommandError::invalid_file(&self.file, mismatch))?;
        Ok(target)
    }
}

impl RowJson<'_> {
    fn drift(&self) -> Option<&Drift> {
        self.verified.as_ref()?.drift.as_ref()
    }

    /// The new choice, if the stored one lost to it.
    fn lost_to(&self, tolerance: f64) -> Option<&Verified> {
        self.verified.as_ref().filter(|verified| verified.regret > tolerance)
    }
}

impl fmt::Display for VerifyReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["stored choice", "fresh choice", ">regret", ">stored median", ">now"];
        let table = entry::table(columns, self.verified.iter().map(|row| (row.entry, cells(row))));
        write!(f, "{table}")?;
        for row in &self.verified {
            let subject = entry::subject(row.entry);
            if let Some(Verified { fresh, regret, .. }) = row.lost_to(self.tolerance) {
                let fresh = entry::full_choice(fresh.choice, &fresh.parameters);
                let ratio = 1.0 + regret;
                writeln!(
                    f,
                    "lost: {subject}: the choice takes {ratio:.3} times as long as {fresh}"
                )?;
            }
            if let Some(drift) = row.drift() {
                writeln!(f, "drift: {subject}: the same choice {drift}")?;
            }
        }
        write!(f, "{} verified", entry::entries(self.verified.len()))?;
        if let Some((median, worst)) = self.median_regret.zip(self.worst_regret) {
            let [median, worst] = [median, worst].map(entry::percent);
            write!(f, ", regret {median} in the median, {worst} at worst")?;
        }
        write!(f, ", {} above {:.1} %", self.above_tolerance, self.tolerance * 100.0)?;
        for (count, what) in [
            (self.drifted, "drifted"),
            (self.failed, "failed"),
            (self.passed_over.len(), "skipped"),
            (self.left, "not measured"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        writeln!(f)
    }
}

fn cells(RowJson { entry, verified, .. }: &RowJson<'_>) -> [String; 5] {
    let [fresh, regret, now] = match verified {
        Some(Verified { fresh, regret, median_ns, .. }) => [
            entry::full_choice(fresh.choice, &fresh.parameters),
            entry::percent(*regret),
            entry::time(*median_ns).unwrap_or_default(),
        ],
        None => ["failed".to_owned(), String::new(), String::new()],
    };
    let stored = entry::full_choice(entry.choice, &entry.parameters);
    let before = entry::time(entry.chosen.median_ns).unwrap_or_default();
    [stored, fresh, regret, before, now]
}

/// The problem of an entry, if its kernel is unchanged.
fn problem_of(entry: &Entry, target: &Target) -> Result<Problem, String> {
    let key = &entry.key;
    let problem = Problem::new(&key.kernel, &key.dtypes, &entry::shape(&entry.shape))
        .map_err(|error| error.to_string())?;
    let now = problem
        .key(&target.limits, key.policy, key.objective)
        .map_err(|error| error.to_string())?;
    if !current_sources(&key.kernel).contains(&key.source) {
        return Err("the kernel's source has changed: tune it again".into());
    }
    if now != *key || problem.shape() != entry.shape {
        return Err(format!("it is of another variant, this version runs {:?}", now.variant));
    }
    Ok(problem)
}

struct Verifier<'a> {
    limits: &'a DeviceLimits,
    tolerance: f64,
    process: MeasuringProcess<'a>,
    interrupt: &'a AtomicBool,
    progress: DeviceProgress,
}

impl Verifier<'_> {
    /// Verifies the entries in order, until all are done or the command is interrupted.
    fn verify_all<'a>(
        &mut self,
        wanted: &[(Problem, &'a Entry)],
        bars: &ProgressBars,
    ) -> Vec<RowJson<'a>> {
        let mut rows = Vec::new();
        for (problem, entry) in wanted {
            let (verified, error) = match self.verify(problem, entry) {
                Ok(verified) => (Some(verified), None),
                Err(_) if self.interrupt.load(Ordering::Relaxed) => break,
                Err(error) => {
                    bars.suspend(|| note(format_args!("{problem}: {error}")));
                    (None, Some(error.to_string()))
                }
            };
            rows.push(RowJson { entry, verified, error });
            bars.tick();
        }
        rows
    }

    /// Fails once the command is interrupted.
    fn verify(&mut self, problem: &Problem, entry: &Entry) -> Result<Verified, CommandError> {
        self.ensure_running()?;
        let Key { policy, .. } = entry.key;
        self.progress.begin(problem);
        let mut remote = self.process.open(problem, policy)?;
        let compared = self.compare(&mut remote, problem, entry);
        self.process.keep(remote, policy, &self.progress);
        let (fresh, regret, now) = compared?;
        let drift = Drift::between(&entry.chosen, &entry.found.date, &now, self.tolerance);
        Ok(Verified { fresh, regret, median_ns: now.median_ns, drift })
    }

    /// The choice of a new search, the regret of the stored choice, and the times of the stored choice.
    fn compare(
        &mut self,
        remote: &mut Remote,
        problem: &Problem,
        entry: &Entry,
    ) -> Result<(Candidate, f64, Summary), CommandError> {
        let Key { objective, .. } = entry.key;
        let mut space = Space::new(remote.configurations()?);
        space.restrict(objective);
        // An older entry may lack parameters, which then have their defaults.
        let parameters = match problem.setup(self.limits, &entry.parameters) {
            Ok(setup) => setup.parameters,
            Err(error) => return Err(no_longer_valid(format!("{error}: tune it again"))),
        };
        // Added to a copy, so that the stored choice does not affect the new search.
        let stored = space.clone().add(&parameters, entry.choice);
        let why_illegal = || no_longer_valid(why_illegal(&space, &parameters, entry.choice));
        let stored = stored.ok_or_else(why_illegal)?;
        let budget = Budget { interrupt: Some(self.interrupt), ..Budget::default() };
        let outcome = tune(remote, &mut space, objective, &budget, &mut self.progress)?;
        if !outcome.complete {
            return Err(interrupted().into());
        }
        let fresh = outcome.winner;
        if stored.is_same_plan(&fresh) {
            return Ok((fresh, 0.0, outcome.chosen));
        }
        remote.check(&stored)?;
        if let Some(latency) = outcome.latency.filter(|latency| latency.met) {
            let limit = entry::real(latency.max_launch_ns);
            let times = rounds(|_| self.time(remote, &stored, Portion::LargestLaunch))?;
            let median = Samples::new(times).map_or(f64::INFINITY, |times| times.median());
            if median > limit {
                let (median, limit) = (duration(median), duration(limit));
                let message = format!("a launch takes {median}, the limit is {limit}");
                return Err(no_longer_valid(message));
            }
        }
        let pairs = rounds(|round| {
            let mut time = |candidate| self.time(remote, candidate, Portion::Sequence);
            // Alternates the order.
            if round % 2 == 0 {
                let first = time(&stored)?;
                return Ok((first, time(&fresh)?));
            }
            let first = time(&fresh)?;
            Ok((time(&stored)?, first))
        })?;
        let times = Samples::new(pairs.iter().map(|(stored, _)| *stored));
        let ratios = Samples::new(pairs.iter().map(|(stored, fresh)| stored / fresh));
        let (times, ratios) = times
            .zip(ratios)
            .ok_or_else(|| MeasureFailure::new(FailureKind::Launch, "no time was measured"))?;
        Ok((fresh, ratios.median() - 1.0, times.summary()))
    }

    fn time(
        &self,
        remote: &mut Remote,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<f64, MeasureFailure> {
        self.ensure_running()?;
        Ok(remote.sample(candidate, portion)?.time_ns)
    }

    fn ensure_running(&self) -> Result<(), MeasureFailure> {
        if self.interrupt.load(Ordering::Relaxed) { Err(interrupted()) } else { Ok(()) }
    }
}

/// The results of all rounds but the first, the warm-up.
fn rounds<T>(
    round: impl FnMut(u32) -> Result<T, MeasureFailure>,
) -> Result<Vec<T>, MeasureFailure> {
    let mut results = (0..=ROUNDS).map(round).collect::<Result<Vec<T>, _>>()?;
    results.remove(0);
    Ok(results)
}

fn interrupted() -> MeasureFailure {
    MeasureFailure::new(FailureKind::Timeout, "interrupted")
}

fn why_illegal(space: &Space, parameters: &Named, choice: StoredChoice) -> String {
    let planned = space.configuration(parameters).map(|config| {
        Plan::new(&config.request, config.batch.as_ref(), &config.limits, Choice::from(choice))
    });
    match planned {
        None => format!(
            "the kernel does not support the parameters {} here: tune it again",
            entry::parameters(parameters)
        ),
        Some(Err(violations)) => violations.to_string(),
        Some(Ok(_)) => "it is not a candidate of the tuner: tune it again".into(),
    }
}

fn no_longer_valid(reason: String) -> CommandError {
    CommandError::Failed(format!("the stored choice is no longer valid: {reason}"))
}

/// Pairs of samples: enough for a confidence interval.
const ROUNDS: u32 = 21;
