//! Tunes problems of the work queue on one device.

use std::collections::BTreeMap;
use std::fs;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use gridguard::profile::{
    self, Attainable, Document, Entry, Environment, Key, MergeConflict, Objective,
    ProfileErrorKind, Provenance,
};
use gridguard_autotune::{
    Budget, Error, ErrorKind, FailureKind, MeasureFailure, Measurer, Resumed, Roofline, Space,
    TuningOutcome, WhenIdle, attainable, tune,
};
use gridguard_files::LockError;
use gridguard_problems::current_sources;

use super::from::OtherProfile;
use super::group::DeviceGroup;
use super::journal::JournalFile;
use super::output::Reporter;
use super::task::{Task, TaskProblem};
use crate::error::CommandError;
use crate::files::note_published;
use crate::measure::idle::SharedDevice;
use crate::measure::process::{MeasuringProcess, TRANSFER};
use crate::measure::progress::DeviceProgress;
use crate::measure::target::Target;
use crate::output::note;

/// One device, its group, and the process that measures on it.
pub(crate) struct Session<'a> {
    pub(crate) target: &'a Target,
    pub(crate) group: &'a DeviceGroup,
    pub(crate) environment: Environment,
    /// Where the only candidates come from.
    pub(crate) from: Option<&'a OtherProfile>,
    /// Whether stored choices are checked instead.
    pub(crate) verifies: bool,
    /// Waits while other processes use the device.
    pub(crate) shared: Option<SharedDevice<'a>>,
    pub(crate) process: MeasuringProcess<'a>,
    pub(crate) reporter: &'a Reporter<'a>,
    pub(crate) progress: DeviceProgress,
    /// No problem starts after this.
    pub(crate) deadline: Option<Instant>,
    pub(crate) interrupt: &'a AtomicBool,
}

impl Session<'_> {
    /// Tunes a problem, stores the choice, and reports the result.
    pub(crate) fn process(&mut self, task: &Task) {
        if self.is_over() {
            return;
        }
        if self.verifies {
            let result = self.verify(task);
            return self.reporter.report_verified(task, self.target, result);
        }
        let result = self.search(task);
        // The device was not idle before the time was over.
        if result.is_ok() || self.shared.is_none() || !self.is_over() {
            self.reporter.report(task, self.target, result);
        }
    }

    fn is_over(&self) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        is_late || self.interrupt.load(Ordering::Relaxed)
    }

    /// Launches the stored choice once, and compares its output with the default's, which is compared with a reference.
    /// Removes an entry whose output is wrong or whose choice is not legal. Any other then states this driver and compiler.
    fn verify(&mut self, task: &Task) -> Result<(), CommandError> {
        let (key, shape) = (task.key(&self.target.limits)?, task.problem.shape());
        let TaskProblem::Kernel(problem) = &task.problem else { return Ok(()) };
        let Some(entry) = self.group.stored(&key, &shape).cloned() else { return Ok(()) };
        self.progress.begin(&task.problem);
        let mut remote = self.process.open(problem, task.policy)?;
        let mut space = Space::new(remote.configurations()?);
        space.restrict(task.objective);
        let candidate = match entry.is_confirmed() {
            true => space.default().cloned(),
            false => space.add(&entry.parameters, entry.choice),
        };
        let checked = match candidate {
            Some(candidate) => remote.check(&candidate),
            None => Err(MeasureFailure::new(FailureKind::Illegal, "its choice is not legal")),
        };
        self.process.keep(remote, task.policy, &self.progress);
        let kind = checked.as_ref().err().map(|failure| failure.kind);
        let is_wrong = matches!(kind, Some(FailureKind::Illegal | FailureKind::Mismatch));
        if is_wrong || kind.is_none() && !entry.is_confirmed() {
            let empty = Document::new(self.target.identity.clone(), self.environment.clone());
            let Environment { driver, compiler, .. } = self.environment.clone();
            let verified = Entry {
                found: Provenance { driver, compiler, ..entry.found.clone() },
                ..entry.clone()
            };
            let published = profile::update(&self.group.file, empty, |document| {
                match document.get(&key, &shape) == Some(&entry) {
                    true if is_wrong => document.retain(|one| *one != entry),
                    true => drop(document.insert(verified)?),
                    // Another process has replaced it.
                    false => {}
                }
                Ok(())
            })?;
            note_published(&self.group.file, &published);
        }
        Ok(checked.map_err(Error::from)?)
    }

    fn search(&mut self, task: &Task) -> Result<TuningOutcome, CommandError> {
        let key = task.key(&self.target.limits)?;
        let file = self.open_journal(task, &key)?;
        self.progress.begin(&task.problem);
        let roofline = self.roofline(task);
        let least_ns = roofline.map(|roofline| roofline.least_ns());
        let outcome = match &task.problem {
            TaskProblem::Kernel(problem) => {
                let shared = self.shared.clone();
                let wait = |time| shared.as_ref().map_or(Ok(()), |device| device.wait(time));
                wait(BEFORE_OPENING)?;
                let remote = self.process.open(problem, task.policy)?;
                let mut remote = WhenIdle::new(remote, wait);
                let mut space = Space::new(remote.configurations()?);
                space.restrict(task.objective);
                let some = self.from.map(|other| other.candidates(&key, &mut space));
                match some {
                    Some(Some(some)) => space.keep(&some),
                    Some(None) => self.progress.note(format_args!(
                        "{key}: not in the other profile, all candidates are measured"
                    )),
                    None => {}
                }
                let (outcome, remote) = self.measure(remote, &mut space, task, file, least_ns);
                self.process.keep(remote.into_inner(), task.policy, &self.progress);
                outcome
            }
            TaskProblem::Program(program) => {
                let measurer = program.measurer(self.target).interrupt(self.interrupt);
                let mut space = Space::listed(program.problem.candidates());
                self.measure(measurer, &mut space, task, file, None).0
            }
        };
        if let Some(ErrorKind::Default(_)) = outcome.as_ref().err().map(Error::kind) {
            // The next run must not read this failure, because its cause may be fixed.
            JournalFile::remove(&self.group.file, task);
        }
        let outcome = outcome?;
        if outcome.is_decided() {
            let attained_percent = roofline.map_or(0, |roofline| roofline.percent(&outcome.chosen));
            let found = Provenance { attained_percent, ..self.provenance(task)? };
            let entry = outcome.entry(key, task.problem.shape(), found);
            self.publish(&entry, &outcome)?;
        }
        // The next run must not read disturbed samples either.
        if outcome.complete {
            JournalFile::remove(&self.group.file, task);
        }
        Ok(outcome)
    }

    /// What the device can move with the traffic of a kernel of ours, measured once for each size. Not beside other
    /// processes, whose traffic it would count, nor for a latency.
    fn roofline(&mut self, task: &Task) -> Option<Roofline> {
        let TaskProblem::Kernel(problem) = &task.problem else { return None };
        if self.shared.is_some() || task.objective != Objective::Throughput {
            return None;
        }
        let traffic = problem.traffic(&self.target.limits).ok()?.total();
        let bytes = u64::try_from(traffic).ok().filter(|bytes| *bytes > 0)?;
        let (l2, size) = (task.policy.l2, Attainable::size_of(bytes));
        let group = self.group;
        let mut known = group.attainable.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.iter().find(|one| (one.l2, one.bytes) == (l2, size)) {
            return Some(Roofline { bytes, attainable: *known });
        }
        let measured = self.process.open(&format_args!("{TRANSFER}{size}"), task.policy);
        let measured = measured.and_then(|mut remote| {
            let attainable = attainable(&mut remote, l2, size);
            self.process.keep(remote, task.policy, &self.progress);
            Ok(attainable?)
        });
        match measured {
            Ok(attainable) => {
                known.push(attainable);
                Some(Roofline { bytes, attainable })
            }
            Err(error) => {
                self.progress
                    .note(format_args!("cannot measure how much {} moves: {error}", self.target));
                None
            }
        }
    }

    /// Searches candidates of `space`. Returns the measurer too.
    fn measure<M: Measurer>(
        &mut self,
        measurer: M,
        space: &mut Space,
        task: &Task,
        file: Option<JournalFile>,
        least_ns: Option<f64>,
    ) -> (Result<TuningOutcome, Error>, M) {
        space.restrict(task.objective);
        let journal = file.as_ref().map(|file| file.journal.clone()).unwrap_or_default();
        let mut measurer = Resumed::new(measurer, journal);
        if let Some(file) = file {
            measurer = measurer.on_record(file.into_writer());
        }
        let budget = Budget {
            wall_time: self.deadline.map(|end| end.saturating_duration_since(Instant::now())),
            interrupt: Some(self.interrupt),
            least_ns,
            ..Budget::default()
        };
        let outcome = tune(&mut measurer, space, task.objective, &budget, &mut self.progress);
        (outcome, measurer.into_parts().0)
    }

    /// The journal of a search. A search continues without a journal, unless another process has it open.
    fn open_journal(&self, task: &Task, key: &Key) -> Result<Option<JournalFile>, CommandError> {
        // Each device has its own journal.
        let device = self.target.journal_name();
        let subject = self.subject(task, key, &device);
        match JournalFile::open(&self.group.file, task, &device, subject) {
            Ok((file, refused)) => {
                refused.into_iter().for_each(|note| self.progress.note(note));
                Ok(Some(file))
            }
            Err(held @ LockError::Held { .. }) => Err(CommandError::held(&held)),
            Err(error) => {
                let problem = &task.problem;
                self.progress.note(format_args!(
                    "{problem}: searched without a journal: cannot open its journal: {error}"
                ));
                Ok(None)
            }
        }
    }

    /// What the measurements of a journal depend on.
    fn subject(&self, task: &Task, key: &Key, device: &str) -> BTreeMap<String, String> {
        let Environment { driver, compiler, tuner } = self.environment.clone();
        // The results depend on the command and its values.
        let program = match &task.problem {
            TaskProblem::Kernel(_) => String::new(),
            TaskProblem::Program(program) => format!("; {:?}", program.problem),
        };
        let from = self.from.map(|from| format!("; from {from}")).unwrap_or_default();
        let bits = if self.process.same_bits { "; same bits" } else { "" };
        let subject = [
            ("problem", format!("{task}; {key:?}{program}{from}{bits}")),
            ("device", format!("{device}, {:?}", self.target.identity)),
            ("driver", [driver].into_iter().chain(module_version()).collect::<Vec<_>>().join(", ")),
            ("compiler", compiler),
            ("tuner", tuner),
        ];
        subject.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Replaces the earlier entry, whatever its date, and decides for the kernel anew. Notes if another process has written
    /// that entry meanwhile.
    fn publish(&self, entry: &Entry, outcome: &TuningOutcome) -> Result<(), CommandError> {
        let (file, Entry { key, shape, .. }) = (&self.group.file, entry);
        let empty = Document::new(self.target.identity.clone(), self.environment.clone());
        let ours = empty.clone();
        // No lookup finds entries of the kernel's earlier code. The code of other programs is unknown.
        let sources = current_sources(&key.kernel);
        let is_gone = |other: &Entry| {
            other.key.kernel == key.kernel
                && !sources.is_empty()
                && !sources.contains(&other.key.source)
        };
        let mut measured = self.group.measured.lock().unwrap_or_else(PoisonError::into_inner);
        measured.add(entry, outcome);
        let published = profile::update(file, empty, |document| {
            document.retain(|other| !is_gone(other));
            document.merge(&ours)?;
            let replaced = document.insert(entry.clone())?;
            let moved = self.group.attainable.lock().unwrap_or_else(PoisonError::into_inner);
            moved.iter().try_for_each(|one| document.add_attainable(*one))?;
            measured.settle(document, &key.kernel).map(|()| replaced)
        })
        .map_err(|error| match error.kind() {
            ProfileErrorKind::Write(_) => {
                CommandError::failed(format_args!("{error}; {UNWRITTEN}"))
            }
            _ => error.into(),
        })?;
        note_published(file, &published);
        let replaced = published.outcome.filter(|old| Some(old) != self.group.stored(key, shape));
        if let Some(dropped) = replaced.filter(|old| old != entry) {
            let conflict = MergeConflict { kept: entry.clone(), dropped };
            let file = file.display();
            note(format_args!("{file}: replaced an entry that is newer than this run: {conflict}"));
        }
        Ok(())
    }

    fn provenance(&self, task: &Task) -> Result<Provenance, CommandError> {
        let Environment { driver, compiler, tuner } = self.environment.clone();
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let tolerance = match &task.problem {
            TaskProblem::Kernel(_) if self.process.same_bits => "0".to_owned(),
            TaskProblem::Kernel(problem) => match problem.tolerance(&self.target.limits)? {
                0.0 => "0".to_owned(),
                some => format!("{some:e}"),
            },
            // The program's own test decides.
            TaskProblem::Program(_) => String::new(),
        };
        Ok(Provenance { date, driver, compiler, tuner, tolerance, ..Provenance::default() })
    }
}

const UNWRITTEN: &str =
    "the profile is as before: make room, or name another file with --profile, and run this again";
/// How long a device must be idle before a problem is opened, which takes longer than a sample.
const BEFORE_OPENING: Duration = Duration::from_secs(2);

/// The version of the driver's kernel module, for example `580.159.04`. Several have the same CUDA version.
fn module_version() -> Option<String> {
    let version = fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(version.trim().to_owned())
}
