//! `gridguard profile verify`: re-measures a profile, and reports choices that lost or whose time has changed.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use clap::Args;
use gridguard::DeviceLimits;
use gridguard::profile::{Backend, Document, Entry, Key, Named, Objective, ParsedProfile, Summary};
use gridguard_autotune::{
    Budget, Candidate, Error, ErrorKind, FailureKind, MeasureFailure, Measurer, Observer, Samples,
    Space, TuningOutcome, duration, real, tune,
};
use gridguard_problems::{ErrorKind as ProblemKind, LaunchSetup, Problem, current_sources};
use serde::Serialize;

use super::entry::{self, Remark};
use crate::error::{CommandError, Exit};
use crate::interrupt;
use crate::measure::args::{self, DeviceSelection, KernelFilter};
use crate::measure::process::MeasuringProcess;
use crate::measure::progress::{DeviceProgress, ProgressBars};
use crate::measure::target::{Target, note_cache};
use crate::output::{OutputArgs, counted, joined_sizes, note};
use crate::words::{Suggested, gpu_words};

#[derive(Args)]
pub(crate) struct Verify {
    /// Profile
    file: PathBuf,
    /// Device ordinal, or `host` [default: the first device, or host for a profile of the host]
    #[arg(long, value_name = "N|host", value_parser = args::device)]
    device: Option<DeviceSelection>,
    /// GPU of the catalogue whose limits the host uses [default: the GPU of the profile]
    #[arg(long, value_name = "NAME", value_parser = Suggested(gpu_words), hide_possible_values = true)]
    gpu: Option<String>,
    #[command(flatten)]
    kernels: KernelFilter,
    /// How much slower than the fastest a choice may be, and how far its time may have changed
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = args::percent)]
    tolerance: f64,
    /// Public keys in PEM that may sign, if the profile is an address such as oci://REGISTRY/REPOSITORY:TAG
    #[cfg(feature = "fleet")]
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct VerifyReport<'a> {
    file: String,
    device: String,
    tolerance: f64,
    verified: Vec<RowJson<'a>>,
    passed_over: Vec<Remark<&'a Entry>>,
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

impl Verify {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        #[cfg(feature = "fleet")]
        if let Some(exit) = super::fleet::verify(&self.file, self.keys.as_ref(), self.output)? {
            return Ok(exit);
        }
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
                    passed_over.push(Remark { entry, reason });
                }
            }
        }
        if wanted.is_empty() {
            let file = self.file.display();
            return Err(CommandError::failed(format_args!("{file}: no entry can be measured")));
        }
        note_cache(std::slice::from_ref(&target));
        let interrupt = interrupt::flag()?;
        let bars = ProgressBars::new("verified", wanted.len());
        let mut verifier = Verifier {
            limits: &target.limits,
            tolerance: self.tolerance,
            process: MeasuringProcess::new(&target, false),
            interrupt,
            progress: bars.device(target.to_string()),
        };
        let verified = verifier.verify_all(&wanted, &bars);
        bars.clear();
        let done = || verified.iter().filter_map(|row| row.verified.as_ref());
        let regrets: Vec<f64> = done().map(|verified| verified.regret).collect();
        let samples = Samples::new(regrets.iter().copied());
        let report = VerifyReport {
            file: self.file.display().to_string(),
            device: target.to_string(),
            tolerance: self.tolerance,
            above_tolerance: regrets.iter().filter(|regret| **regret > self.tolerance).count(),
            drifted: done().filter(|verified| verified.drift.is_some()).count(),
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
        let usual = match document.device().backend {
            Backend::Host => DeviceSelection::Host,
            Backend::Cuda => DeviceSelection::Ordinal(0),
        };
        let (device, gpu) = (self.device.unwrap_or(usual), self.gpu.as_deref());
        let target = Target::select(device, gpu, &document.device().name)?;
        let serves = document.device().serves(document.aliases(), &target.identity);
        serves.map_err(CommandError::in_file(&self.file))?;
        Ok(target)
    }
}

impl fmt::Display for VerifyReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["stored choice", "fresh choice", ">regret", ">stored median", ">now"];
        let table = entry::table(columns, self.verified.iter().map(|row| (row.entry, cells(row))));
        write!(f, "{table}")?;
        for row in &self.verified {
            let Some(Verified { fresh, regret, drift, .. }) = &row.verified else { continue };
            let subject = entry::subject(row.entry);
            if *regret > self.tolerance {
                let fresh = entry::full_choice(fresh.choice, &fresh.parameters);
                let ratio = 1.0 + regret;
                writeln!(
                    f,
                    "lost: {subject}: the choice takes {ratio:.3} times as long as {fresh}"
                )?;
            }
            if let Some(drift) = drift {
                writeln!(f, "drift: {subject}: the same choice {drift}")?;
            }
        }
        write!(f, "{} verified", entry::entries(self.verified.len()))?;
        if let Some((median, worst)) = self.median_regret.zip(self.worst_regret) {
            let [median, worst] = [median, worst].map(entry::percent);
            write!(f, ", regret {median} in the median, {worst} at worst")?;
        }
        write!(f, ", {} above {:.1} %", self.above_tolerance, self.tolerance * 100.0)?;
        let others = counted(&[
            (self.drifted, "drifted"),
            (self.failed, "failed"),
            (self.passed_over.len(), "skipped"),
            (self.left, "not measured"),
        ]);
        writeln!(f, "{others}")
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
    let problem = Problem::new(&key.kernel, &key.dtypes, &joined_sizes(&entry.shape));
    let problem = problem.map_err(|error| match error.kind() {
        ProblemKind::UnknownKernel => {
            "it is no kernel of gridguard: tune it again with the program that tuned it".to_owned()
        }
        _ => error.to_string(),
    })?;
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
            let result = self.verify(problem, entry);
            if result.is_err() && self.interrupt.load(Ordering::Relaxed) {
                break;
            }
            let error = result.as_ref().err().map(ToString::to_string);
            if let Some(error) = &error {
                bars.suspend(|| note(format_args!("{problem}: {error}")));
            }
            rows.push(RowJson { entry, verified: result.ok(), error });
            bars.tick();
        }
        rows
    }

    fn verify(&mut self, problem: &Problem, entry: &Entry) -> Result<Verified, CommandError> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(interrupted().into());
        }
        let Key { policy, .. } = entry.key;
        self.progress.begin(problem);
        let mut remote = self.process.open(problem, policy)?;
        let mut comparison = Comparison {
            limits: self.limits,
            tolerance: self.tolerance,
            interrupt: self.interrupt,
            observer: &mut self.progress,
            measurer: &mut remote,
        };
        let compared = comparison.run(problem, entry);
        self.process.keep(remote, policy, &self.progress);
        compared
    }
}

/// Compares an entry with what a measurer measures now.
struct Comparison<'a> {
    limits: &'a DeviceLimits,
    tolerance: f64,
    interrupt: &'a AtomicBool,
    observer: &'a mut dyn Observer,
    measurer: &'a mut dyn Measurer,
}

impl Comparison<'_> {
    /// Compares the stored choice with the choice of a new search.
    fn run(&mut self, problem: &Problem, entry: &Entry) -> Result<Verified, CommandError> {
        let Key { objective, .. } = entry.key;
        let mut space = Space::new(self.measurer.configurations()?);
        space.restrict(objective);
        // An older entry may lack parameters, which then have their defaults.
        let setup = problem.setup(self.limits, &entry.parameters);
        let LaunchSetup { parameters, .. } =
            setup.map_err(|error| no_longer_valid(format!("{error}: tune it again")))?;
        // Added to a copy, so that the stored choice does not affect the new search.
        let stored = space.clone().add(&parameters, entry.choice);
        let why_illegal = || no_longer_valid(why_illegal(&space, &parameters, entry));
        let stored = stored.ok_or_else(why_illegal)?;
        let outcome = self.search(&mut space, objective)?;
        let fresh = outcome.winner;
        let (regret, now) = if stored.is_same_plan(&fresh) {
            (0.0, outcome.chosen)
        } else {
            if outcome.latency.is_some_and(|latency| latency.met) {
                self.check_latency(&stored, objective)?;
            }
            self.regret(stored, fresh.clone())?
        };
        let drift = Drift::between(&entry.chosen, &entry.found.date, &now, self.tolerance);
        Ok(Verified { fresh, regret, median_ns: now.median_ns, drift })
    }

    /// Fails unless the largest launch of the stored choice is within the limit of `objective`.
    fn check_latency(
        &mut self,
        stored: &Candidate,
        objective: Objective,
    ) -> Result<(), CommandError> {
        let mut space = Space::listed(vec![stored.clone()]);
        let outcome = self.search(&mut space, objective).map_err(of_stored)?;
        let latency = outcome.latency.ok_or_else(no_time)?;
        let (median_ns, limit_ns) = (latency.launch.median_ns, latency.max_launch_ns);
        if median_ns <= limit_ns {
            return Ok(());
        }
        let [median, limit] = [median_ns, limit_ns].map(|ns| duration(real(ns)));
        Err(no_longer_valid(format!("a launch takes {median}, the limit is {limit}")))
    }

    /// How much longer the stored choice takes than the new choice, and its times.
    fn regret(
        &mut self,
        stored: Candidate,
        fresh: Candidate,
    ) -> Result<(f64, Summary), CommandError> {
        let mut both = Space::listed(vec![stored, fresh.clone()]);
        let outcome = self.search(&mut both, Objective::Throughput).map_err(of_stored)?;
        let measured = outcome.candidates.iter().find(|one| one.candidate == fresh);
        let ratio = measured.and_then(|one| one.against_default).ok_or_else(no_time)?;
        Ok((ratio.recip() - 1.0, outcome.baseline))
    }

    /// A complete search.
    fn search(&mut self, space: &mut Space, objective: Objective) -> Result<TuningOutcome, Error> {
        let budget = Budget { interrupt: Some(self.interrupt), ..Budget::default() };
        let outcome = tune(self.measurer, space, objective, &budget, self.observer)?;
        if outcome.complete { Ok(outcome) } else { Err(Error::ended(interrupted())) }
    }
}

/// The error of a search whose default is the stored choice.
fn of_stored(error: Error) -> CommandError {
    match error.kind() {
        ErrorKind::Default(failure) => failure.clone().into(),
        _ => error.into(),
    }
}

fn interrupted() -> MeasureFailure {
    MeasureFailure::new(FailureKind::Ended, "interrupted")
}

fn no_time() -> MeasureFailure {
    MeasureFailure::new(FailureKind::Launch, "no time was measured")
}

fn why_illegal(space: &Space, parameters: &Named, Entry { key, choice, .. }: &Entry) -> String {
    let configuration = space.configuration(parameters);
    let planned = configuration.map(|configuration| configuration.plan(*choice, key.objective));
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
    CommandError::failed(format_args!("the stored choice is no longer valid: {reason}"))
}

/// A change in the time of the same choice. The cause is the device, its clocks or its driver, not the choice.
#[derive(Debug, PartialEq, Serialize)]
struct Drift {
    /// The time now divided by the entry's.
    ratio: f64,
    tuned_ns: u64,
    now_ns: u64,
    tuned_on: String,
    now: String,
}

impl Drift {
    /// The drift from `tuned` to `now`, if beyond the tolerance and both confidence intervals.
    fn between(tuned: &Summary, tuned_on: &str, now: &Summary, tolerance: f64) -> Option<Self> {
        let (tuned_ns, now_ns) = (tuned.median_ns, now.median_ns);
        let ratio = 1.0 + entry::change(tuned_ns, now_ns)?;
        let is_sure = now.low_ns > tuned.high_ns || now.high_ns < tuned.low_ns;
        let is_far = ratio.max(ratio.recip()) > 1.0 + tolerance;
        let today = || humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        (is_sure && is_far).then(|| Self {
            ratio,
            tuned_ns,
            now_ns,
            tuned_on: tuned_on.to_owned(),
            now: today(),
        })
    }
}

impl fmt::Display for Drift {
    /// `took 63.80 ms on 2026-11-20T12:00:00Z and takes 53.60 ms on 2026-11-22T12:00:00Z, 0.840 times
    /// as long`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ratio, tuned_on, now, .. } = self;
        let [before, after] = [self.tuned_ns, self.now_ns].map(|ns| duration(real(ns)));
        let tuned_on = if tuned_on.is_empty() { "an unknown date" } else { tuned_on };
        write!(
            f,
            "took {before} on {tuned_on} and takes {after} on {now}, {ratio:.3} times as long"
        )
    }
}

#[cfg(test)]
mod tests {
    use gridguard::profile::{L2, Policy, Provenance, StoredChoice, Submission};
    use gridguard::{KernelLimits, LaunchLimits};
    use gridguard_autotune::{LaunchConfig, Portion, Sample};

    use super::*;

    /// Takes a microsecond a launch and 10 ns an item, on any machine.
    struct Stated(LaunchConfig);

    impl Measurer for Stated {
        fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
            Ok(vec![self.0.clone()])
        }

        fn check(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
            Ok(())
        }

        fn sample(&mut self, one: &Candidate, part: Portion) -> Result<Sample, MeasureFailure> {
            let launches = if part == Portion::Sequence { one.launches } else { 1 };
            let time_ns = real(launches * (1000 + 10 * one.largest_chunk));
            Ok(Sample { time_ns, clock_mhz: None })
        }
    }

    fn entry(choice: StoredChoice, objective: Objective) -> Entry {
        let policy = Policy { l2: L2::Hot, submission: Submission::Eager };
        let source = current_sources("rms_norm").pop().expect("a kernel");
        let (kernel, dtypes) = ("rms_norm".into(), "f32".into());
        let key = Key { kernel, source, dtypes, policy, objective, ..Key::default() };
        Entry {
            key,
            shape: vec![("rows".into(), 10_000), ("columns".into(), 8)],
            choice,
            parameters: Vec::new(),
            launches: 1,
            chosen: Summary::default(),
            default: Summary::default(),
            found: Provenance::default(),
        }
    }

    fn compared(entry: &Entry) -> Result<Verified, CommandError> {
        let problem: Problem = "rms_norm f32 10000x8".parse().expect("a problem");
        let limits = DeviceLimits::any_device();
        let setup = problem.setup(&limits, &[]).expect("supported");
        let LaunchSetup { parameters, request, batch, .. } = setup;
        let of_kernel = LaunchLimits::new(limits.clone(), KernelLimits::unknown("rms_norm"));
        let one = LaunchConfig { parameters, request, batch: Some(batch), limits: of_kernel };
        let (interrupt, tolerance) = (AtomicBool::new(false), 0.05);
        let mut comparison = Comparison {
            limits: &limits,
            tolerance,
            interrupt: &interrupt,
            observer: &mut (),
            measurer: &mut Stated(one),
        };
        comparison.run(&problem, entry)
    }

    #[test]
    fn a_choice_that_is_slower_than_a_new_one_is_reported() {
        let chunks = StoredChoice::Chunked { max_items: 100.try_into().expect("some") };
        let entry = entry(chunks, Objective::Throughput);
        let verified = compared(&entry).expect("legal");
        // 100 launches of 2 us, and one of 101 us.
        assert!((verified.regret - 99.0 / 101.0).abs() < 1e-6, "{}", verified.regret);
        let verified = vec![RowJson { entry: &entry, verified: Some(verified), error: None }];
        let report = VerifyReport {
            file: String::new(),
            device: String::new(),
            tolerance: 0.05,
            verified,
            passed_over: Vec::new(),
            median_regret: None,
            worst_regret: None,
            above_tolerance: 1,
            drifted: 0,
            failed: 0,
            left: 0,
            interrupted: false,
        };
        let text = report.to_string();
        let lost = "lost: rms_norm f32, hot-eager, throughput, 10000x8: the choice takes 1.980 times as long as ";
        assert!(text.contains(lost), "{text}");
    }

    #[test]
    fn a_choice_that_exceeds_its_latency_limit_fails() {
        let limited = |max_launch_us| {
            compared(&entry(StoredChoice::Whole, Objective::Latency { max_launch_us }))
        };
        let error = limited(50).err().expect("a launch takes 101 us").to_string();
        assert!(error.contains("a launch takes 101.0 us, the limit is 50.00 us"), "{error}");
        assert!(limited(200).is_ok());
    }

    fn drift(tuned: [u64; 3], now: [u64; 3]) -> Option<Drift> {
        let summary = |[low_ns, median_ns, high_ns]: [u64; 3]| Summary {
            low_ns,
            median_ns,
            high_ns,
            samples: 20,
        };
        Drift::between(&summary(tuned), "2026-11-20T12:00:00Z", &summary(now), 0.05)
    }

    #[test]
    fn a_drift_is_beyond_the_tolerance_and_both_intervals_in_either_direction() {
        let tuned = [630, 638, 640];
        let faster = drift(tuned, [530, 536, 540]).expect("a drift");
        assert!((faster.ratio - 0.840).abs() < 1e-3, "{faster:?}");
        let slower = drift(tuned, [700, 710, 720]).expect("a drift");
        assert!(
            slower
                .to_string()
                .starts_with("took 638 ns on 2026-11-20T12:00:00Z and takes 710 ns on ")
        );
        assert!(slower.to_string().ends_with(", 1.113 times as long"), "{slower}");
        for stable in [[660, 665, 670], [600, 710, 720], [530, 536, 632], tuned] {
            assert_eq!(drift(tuned, stable), None, "{stable:?}");
        }
        // Nothing was measured then.
        assert_eq!(drift([0; 3], tuned), None);
    }
}
