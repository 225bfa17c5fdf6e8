//! Tunes problems of the work queue on one device.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use gridguard::profile::{self, Document, Entry, Environment, Key, MergeConflict, Provenance};
use gridguard_autotune::{
    Budget, Candidate, Error, ErrorKind, Measurer, Resumed, Space, TuningOutcome, WhenIdle, tune,
};
use gridguard_files::LockError;
use gridguard_problems::current_sources;

use super::from::OtherGpu;
use super::group::DeviceGroup;
use super::journal::JournalFile;
use super::output::{Reporter, SearchResult};
use super::queue::{Shard, WorkItem};
use super::task::{Task, TaskProblem};
use crate::error::CommandError;
use crate::files::note_published;
use crate::measure::idle::SharedDevice;
use crate::measure::process::MeasuringProcess;
use crate::measure::progress::DeviceProgress;
use crate::measure::target::Target;
use crate::output::note;

/// One device, its group, and the process that measures on it.
pub(crate) struct Session<'a> {
    pub(crate) target: &'a Target,
    pub(crate) group: &'a DeviceGroup,
    /// Its choices are the only candidates.
    pub(crate) from: Option<&'a OtherGpu>,
    pub(crate) environment: Environment,
    /// Waits while other processes use the device.
    pub(crate) shared: Option<SharedDevice<'a>>,
    pub(crate) process: MeasuringProcess<'a>,
    pub(crate) reporter: &'a Reporter<'a>,
    pub(crate) progress: DeviceProgress,
    /// No problem starts after this.
    pub(crate) deadline: Option<Instant>,
    pub(crate) interrupt: &'a AtomicBool,
}

/// The candidates of a search.
#[derive(Clone, Copy)]
enum Round<'a> {
    Shard(Shard),
    /// The winners of all shards.
    Finals(&'a [Candidate]),
}

impl Session<'_> {
    /// Processes one item of the work queue. Returns the result of a shard, or reports the result of a problem.
    pub(crate) fn process_item(
        &mut self,
        item: WorkItem<'_, Task, SearchResult>,
    ) -> Option<SearchResult> {
        if self.is_over() {
            return None;
        }
        let (task, result) = match item {
            WorkItem::Search(task, shard) => match self.search(task, Round::Shard(shard)) {
                Ok(found) => return Some(found),
                // The device was not idle before the time was over.
                Err(_) if self.shared.is_some() && self.is_over() => return None,
                Err(error) => (task, Err(error)),
            },
            WorkItem::Confirm(task, shards) => (task, self.confirm(task, shards)),
        };
        self.reporter.report(task, self.target, result);
        None
    }

    fn is_over(&self) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        is_late || self.interrupt.load(Ordering::Relaxed)
    }

    fn search(&mut self, task: &Task, round: Round<'_>) -> Result<SearchResult, CommandError> {
        let key = task.key(&self.target.limits)?;
        let file = self.open_journal(task, &key, round)?;
        self.progress.begin(&task.problem);
        let (outcome, space) = match &task.problem {
            TaskProblem::Kernel(problem) => {
                let shared = self.shared.clone();
                let wait = |time| shared.as_ref().map_or(Ok(()), |device| device.wait(time));
                wait(BEFORE_OPENING)?;
                let remote = self.process.open(problem, task.policy)?;
                let mut remote = WhenIdle::new(remote, wait);
                let mut space = Space::new(remote.configurations()?);
                let (outcome, remote) = self.measure(remote, &mut space, (task, &key), round, file);
                self.process.keep(remote.into_inner(), task.policy, &self.progress);
                (outcome, space)
            }
            TaskProblem::Program(program) => {
                let measurer = program.measurer(self.target).interrupt(self.interrupt);
                let mut space = Space::listed(program.problem.candidates());
                (self.measure(measurer, &mut space, (task, &key), round, file).0, space)
            }
        };
        if let Some(ErrorKind::Default(_)) = outcome.as_ref().err().map(Error::kind) {
            // The next run must not read this failure, because its cause may be fixed.
            JournalFile::remove(&self.group.file, task);
        }
        let outcome = outcome?;
        let shape = task.problem.shape();
        let entry = outcome.complete.then(|| outcome.entry(key, shape, self.provenance()));
        Ok(SearchResult { outcome, largest_legal_chunk: space.largest_legal_chunk(), entry })
    }

    /// Searches candidates of `space`. Returns the measurer too.
    fn measure<M: Measurer>(
        &mut self,
        measurer: M,
        space: &mut Space,
        (task, key): (&Task, &Key),
        round: Round<'_>,
        file: Option<JournalFile>,
    ) -> (Result<TuningOutcome, Error>, M) {
        space.restrict(task.objective);
        if let Some(from) = self.from
            && let Some(note) = from.restrict(space, key, &task.problem.shape())
        {
            self.progress
                .note(format_args!("{}: {note}: all candidates are measured", task.problem));
        }
        match round {
            Round::Shard(shard) => space.keep(&shard.of(space.candidates().to_vec())),
            Round::Finals(winners) => space.keep(winners),
        }
        let journal = file.as_ref().map(|file| file.journal.clone()).unwrap_or_default();
        let mut measurer = Resumed::new(measurer, journal);
        if let Some(file) = file {
            measurer = measurer.on_record(file.into_writer());
        }
        let budget = Budget {
            wall_time: self.deadline.map(|end| end.saturating_duration_since(Instant::now())),
            interrupt: Some(self.interrupt),
            ..Budget::default()
        };
        let outcome = tune(&mut measurer, space, task.objective, &budget, &mut self.progress);
        (outcome, measurer.into_parts().0)
    }

    /// The journal of a search. A search continues without a journal, unless another process has it open.
    fn open_journal(
        &self,
        task: &Task,
        key: &Key,
        round: Round<'_>,
    ) -> Result<Option<JournalFile>, CommandError> {
        let (name, subject) = self.subject(task, key, round);
        match JournalFile::open(&self.group.file, task, &name, subject) {
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

    /// The name of a search of a task, and the subject of its journal.
    fn subject(
        &self,
        task: &Task,
        key: &Key,
        round: Round<'_>,
    ) -> (String, BTreeMap<String, String>) {
        let Environment { driver, compiler, tuner } = self.environment.clone();
        let (candidates, winners) = match round {
            Round::Shard(shard) => (shard.to_string(), &[][..]),
            Round::Finals(winners) => ("finals".to_owned(), winners),
        };
        // The results depend on the command and its values.
        let program = match &task.problem {
            TaskProblem::Kernel(_) => String::new(),
            TaskProblem::Program(program) => format!("; {:?}", program.problem),
        };
        let from = self.from.map(|from| format!("; {}", from.digest())).unwrap_or_default();
        // Each device has its own journal.
        let device = self.target.journal_name();
        let name = format!("{}.{device}", candidates.replace('/', "-of-"));
        let subject = [
            ("problem", format!("{task}; {key:?}{program}")),
            ("candidates", format!("{candidates} {winners:?}{from}")),
            ("device", format!("{device}, {:?}", self.target.identity)),
            ("driver", [driver].into_iter().chain(module_version()).collect::<Vec<_>>().join(", ")),
            ("compiler", compiler),
            ("tuner", tuner),
        ];
        (name, subject.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// Decides between the winners of all shards, and stores the choice.
    fn confirm(
        &mut self,
        task: &Task,
        mut shards: Vec<SearchResult>,
    ) -> Result<SearchResult, CommandError> {
        let winners: Vec<_> = shards.iter().map(|shard| shard.outcome.winner.clone()).collect();
        let found = match shards.pop() {
            Some(only) if shards.is_empty() => only,
            _ => self.search(task, Round::Finals(&winners))?,
        };
        if let Some(entry) = &found.entry {
            self.publish(entry)?;
            JournalFile::remove(&self.group.file, task);
        }
        Ok(found)
    }

    /// Replaces the earlier entry, whatever its date. Notes if another process has written that entry meanwhile.
    fn publish(&self, entry: &Entry) -> Result<(), CommandError> {
        let (file, Entry { key, shape, .. }) = (&self.group.file, entry);
        let mut ours = Document::new(self.target.identity.clone(), self.environment.clone());
        let empty = ours.clone();
        ours.insert(entry.clone())?;
        // No lookup finds entries of the kernel's earlier code. The code of other programs is unknown.
        let sources = current_sources(&key.kernel);
        let is_gone = |other: &Entry| {
            other.key.kernel == key.kernel
                && !sources.is_empty()
                && !sources.contains(&other.key.source)
        };
        let published = profile::update(file, empty, |document| {
            let replaced = document.get(key, shape).cloned();
            document.retain(|other| (&other.key, &other.shape) != (key, shape) && !is_gone(other));
            document.merge(&ours).map(|_| replaced)
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

    fn provenance(&self) -> Provenance {
        let Environment { driver, compiler, tuner } = self.environment.clone();
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Provenance { date, driver, compiler, tuner, ..Provenance::default() }
    }
}

/// How long a device must be idle before a problem is opened, which takes longer than a sample.
const BEFORE_OPENING: Duration = Duration::from_secs(2);

/// The version of the driver's kernel module, for example `580.159.04`. Several have the same CUDA version.
fn module_version() -> Option<String> {
    let version = fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(version.trim().to_owned())
}
