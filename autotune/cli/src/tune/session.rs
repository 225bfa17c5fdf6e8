//! One device at work on problems.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

use gridguard::profile::{self, Document, Entry, Environment, Policy, Provenance};
use gridguard_autotune::{
    Budget, Candidate, Part, Remote, Resumed, Space, Timeouts, TuningOutcome, WorkItem, tune,
};

use super::child;
use super::journal::Kept;
use super::progress::Progress;
use super::target::Target;
use super::task::Task;
use crate::error::CommandError;

/// What all devices of a run have in common.
pub(crate) struct Run<'a> {
    /// The GPU of the catalogue whose limits the host takes on.
    pub(crate) gpu: &'a str,
    /// When nothing more is begun.
    pub(crate) deadline: Option<Instant>,
    pub(crate) interrupt: &'a AtomicBool,
}

/// What came of a problem.
pub(crate) struct Tuned {
    pub(crate) task: Task,
    pub(crate) device: String,
    pub(crate) result: Result<Found, CommandError>,
}

/// The search of a problem, or of a share of its candidates.
pub(crate) struct Found {
    pub(crate) outcome: TuningOutcome,
    pub(crate) largest_legal_chunk: Option<u64>,
    /// The entry, where the search came to its end.
    pub(crate) entry: Option<Entry>,
}

/// One device, its profile and the process that measures on it.
pub(crate) struct Session<'a> {
    run: &'a Run<'a>,
    target: &'a Target,
    environment: Environment,
    file: &'a Path,
    progress: Progress,
    /// The process, which takes times by one policy.
    remote: Option<(Policy, Remote)>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        run: &'a Run<'a>,
        target: &'a Target,
        environment: Environment,
        file: &'a Path,
        progress: Progress,
    ) -> Self {
        Self { run, target, environment, file, progress, remote: None }
    }

    /// Does what it is given. A share answers with what it found; whatever is final goes to `tell`.
    pub(crate) fn turn(
        &mut self,
        turn: WorkItem<'_, Task, Found>,
        tell: impl Fn(Tuned),
    ) -> Option<Found> {
        if self.is_over() {
            return None;
        }
        let (task, result) = match turn {
            WorkItem::Search(task, part) => match self.search(task, part, &[]) {
                Ok(found) => return Some(found),
                Err(failure) => (task, Err(failure)),
            },
            WorkItem::Confirm(task, shares) => (task, self.confirm(task, shares)),
        };
        let device = self.target.to_string();
        tell(Tuned { task: *task, device, result });
        None
    }

    fn is_over(&self) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        let late = self.run.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        late || self.run.interrupt.load(Relaxed)
    }

    /// Searches `part` of the candidates, or `only` some.
    fn search(
        &mut self,
        task: &Task,
        part: Part,
        only: &[Candidate],
    ) -> Result<Found, CommandError> {
        let Task { problem, objective, .. } = *task;
        let key = task.key(&self.target.limits)?;
        self.progress.begin(&problem);
        let remote = self.open(task)?;
        let mut space = Space::new(remote.configurations().to_vec());
        space.restrict(objective);
        match only {
            [] => space.keep_part(part),
            some => space.keep(some),
        }
        // What was measured on another processor, or on another part of a device, is no beginning.
        let device = format!("{}, {:?}", self.target, self.target.identity);
        let shape = problem.shape();
        let kept = Kept::open(self.file, &device, &key, &shape, part, only);
        let mut measurer = Resumed::new(remote, kept.journal()).on_record(kept.into_writer());
        let budget = Budget {
            wall_time: self.run.deadline.map(|end| end.saturating_duration_since(Instant::now())),
            interrupt: Some(self.run.interrupt),
            ..Budget::default()
        };
        let outcome = tune(&mut measurer, &mut space, objective, &budget, &mut self.progress);
        let (remote, _) = measurer.into_parts();
        // Whoever lost its process for good is not asked again.
        self.remote = Some((task.policy, remote)).filter(|(_, remote)| remote.lost().is_none());
        let outcome = outcome?;
        let entry = outcome.complete.then(|| outcome.entry(key, shape, self.found()));
        Ok(Found { outcome, largest_legal_chunk: space.largest_legal_chunk(), entry })
    }

    /// The process that measures, with the problem open.
    fn open(&mut self, task: &Task) -> Result<Remote, CommandError> {
        let Task { problem, policy, .. } = task;
        if let Some((of, mut remote)) = self.remote.take()
            && of == *policy
            && remote.reopen(problem.to_string()).is_ok()
        {
            return Ok(remote);
        }
        let command = child::command(self.target, self.run.gpu, *policy)?;
        Ok(Remote::spawn(command, problem.to_string(), Timeouts::default())?)
    }

    /// Decides between the winners of all shares, and publishes the choice.
    fn confirm(&mut self, task: &Task, mut shares: Vec<Found>) -> Result<Found, CommandError> {
        let found = match (shares.len(), shares.pop()) {
            (1, Some(found)) => found,
            (_, last) => {
                let all = shares.iter().chain(&last);
                let winners: Vec<Candidate> = all.map(|one| one.outcome.winner.clone()).collect();
                self.search(task, Part::ALL, &winners)?
            }
        };
        if let Some(entry) = &found.entry {
            self.publish(entry.clone())?;
        }
        Ok(found)
    }

    fn publish(&self, entry: Entry) -> Result<(), CommandError> {
        let empty = Document::new(self.target.identity.clone(), self.environment.clone());
        let mut ours = empty;
        ours.insert(entry.clone())?;
        profile::publish(self.file, &ours)?;
        Kept::forget(self.file, &entry.key, &entry.shape);
        Ok(())
    }

    fn found(&self) -> Provenance {
        let Environment { driver, compiler, tuner } = self.environment.clone();
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Provenance { date, driver, compiler, tuner, ..Provenance::default() }
    }
}
