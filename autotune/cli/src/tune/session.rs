//! Tunes the problems that one device takes from the work queue.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use gridguard::profile::{self, Document, Entry, Environment, Provenance};
use gridguard_autotune::{Budget, Candidate, Part, Resumed, Space, TuningOutcome, WorkItem, tune};

use super::journal::JournalFile;
use super::selection::Task;
use crate::error::CommandError;
use crate::measure::process::MeasuringProcess;
use crate::measure::progress::DeviceProgress;
use crate::measure::target::Target;

/// The result for a problem.
pub(crate) struct TaskResult {
    pub(crate) task: Task,
    pub(crate) device: String,
    pub(crate) result: Result<SearchResult, CommandError>,
}

/// The result of searching the candidates of a problem, or a part of them.
pub(crate) struct SearchResult {
    pub(crate) outcome: TuningOutcome,
    pub(crate) largest_legal_chunk: Option<u64>,
    /// The profile entry; `None` if the search was cut short.
    entry: Option<Entry>,
}

/// One device, its profile, and the process that measures on it.
pub(crate) struct Session<'a> {
    pub(crate) target: &'a Target,
    pub(crate) environment: Environment,
    pub(crate) file: &'a Path,
    pub(crate) process: MeasuringProcess<'a>,
    pub(crate) progress: DeviceProgress,
    /// No problem is begun after this.
    pub(crate) deadline: Option<Instant>,
    pub(crate) interrupt: &'a AtomicBool,
}

impl Session<'_> {
    /// Processes one item of the work queue. Returns the result of a part of the search; the final result
    /// of a problem goes to `report`.
    pub(crate) fn process_item(
        &mut self,
        item: WorkItem<'_, Task, SearchResult>,
        report: impl Fn(TaskResult),
    ) -> Option<SearchResult> {
        if self.is_over() {
            return None;
        }
        let (task, result) = match item {
            WorkItem::Search(task, part) => match self.search(task, part, &[]) {
                Ok(found) => return Some(found),
                Err(error) => (task, Err(error)),
            },
            WorkItem::Confirm(task, parts) => (task, self.confirm(task, parts)),
        };
        report(TaskResult { task: *task, device: self.target.to_string(), result });
        None
    }

    fn is_over(&self) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        is_late || self.interrupt.load(Ordering::Relaxed)
    }

    /// Searches a part of the candidates, or only those given.
    fn search(
        &mut self,
        task: &Task,
        part: Part,
        only: &[Candidate],
    ) -> Result<SearchResult, CommandError> {
        let Task { problem, policy, objective } = *task;
        let key = task.key(&self.target.limits)?;
        self.progress.begin(&problem);
        let remote = self.process.open(&problem, policy)?;
        let mut space = Space::new(remote.configurations().to_vec());
        space.restrict(objective);
        match only {
            [] => space.keep_part(part),
            some => space.keep(some),
        }
        // Measurements of another processor or another device must not be resumed.
        let device = format!("{}, {:?}", self.target, self.target.identity);
        let shape = problem.shape();
        let journal = JournalFile::open(self.file, &device, &key, &shape, part, only);
        let mut measurer = Resumed::new(remote, journal.journal()).on_record(journal.into_writer());
        let budget = Budget {
            wall_time: self.deadline.map(|end| end.saturating_duration_since(Instant::now())),
            interrupt: Some(self.interrupt),
            ..Budget::default()
        };
        let outcome = tune(&mut measurer, &mut space, objective, &budget, &mut self.progress);
        self.process.keep(measurer.into_parts().0, policy);
        let outcome = outcome?;
        let entry = outcome.complete.then(|| outcome.entry(key, shape, self.provenance()));
        Ok(SearchResult { outcome, largest_legal_chunk: space.largest_legal_chunk(), entry })
    }

    /// Decides between the winners of all parts, and publishes the choice.
    fn confirm(
        &mut self,
        task: &Task,
        mut parts: Vec<SearchResult>,
    ) -> Result<SearchResult, CommandError> {
        let found = match (parts.len(), parts.pop()) {
            (1, Some(only)) => only,
            (_, last) => {
                let all = parts.iter().chain(&last);
                let winners: Vec<Candidate> = all.map(|part| part.outcome.winner.clone()).collect();
                self.search(task, Part::ALL, &winners)?
            }
        };
        if let Some(entry) = &found.entry {
            let mut document =
                Document::new(self.target.identity.clone(), self.environment.clone());
            document.insert(entry.clone())?;
            profile::publish(self.file, &document)?;
            JournalFile::remove(self.file, &entry.key, &entry.shape);
        }
        Ok(found)
    }

    fn provenance(&self) -> Provenance {
        let Environment { driver, compiler, tuner } = self.environment.clone();
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Provenance { date, driver, compiler, tuner, ..Provenance::default() }
    }
}
