//! Measures in a child process, so that a candidate that crashes or hangs cannot stop the tuner.

pub(crate) mod group;
mod process;
mod protocol;
mod serve;

use core::fmt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use gridguard::profile::StoredChoice;
use serde::de::DeserializeOwned;

pub use group::unended_processes;
pub use serve::{serve, serve_on};

use crate::candidate::{Candidate, LaunchConfig};
use crate::error::{Error, ErrorKind};
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::measure::{Measurer, Portion, Sample};
use group::CLOSING;
use process::{Limit, Process, Stop};
use protocol::Request;

/// How long the tuner waits for a measuring process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To start and open the problem: contexts, memory, the first compilation.
    pub open: Duration,
    /// For any other request: a candidate's compilation and check, or its warm-up and sample.
    pub request: Duration,
    /// To end on request.
    pub close: Duration,
    /// To end once killed. A process in a driver call may take longer; another process then continues.
    pub kill: Duration,
}

impl Default for Timeouts {
    /// 120 s to open, 60 s for a request, 5 s to end, 5 s to end once killed.
    fn default() -> Self {
        Self {
            open: Duration::from_secs(120),
            request: Duration::from_secs(60),
            close: Duration::from_secs(5),
            kill: Duration::from_secs(5),
        }
    }
}

/// Checks and times candidates in a child process that runs [`serve()`].
///
/// A candidate that crashes the process or exceeds the timeout fails with a [`MeasureFailure`] of kind `Crash` or
/// `Timeout`. The old process is killed with all processes that it started, and the next request starts a new one. If
/// the old process does not end, the kind is `Unended`, and [`unended_processes`] lists it until it ends. The child
/// ends when this value is dropped, or when the process that holds it ends.
///
/// Requests and responses use a separate connection, so the output of a candidate is never read as a
/// response. [`Self::take_printed`] returns that output.
pub struct Remote {
    command: Box<dyn Fn() -> Command + Send>,
    problem: String,
    timeouts: Timeouts,
    configurations: Vec<LaunchConfig>,
    process: Option<Process>,
    printed: String,
    fatal_defaults: u32,
    lost: Option<Error>,
    stop: Option<Stop>,
}

impl Remote {
    /// Starts `command` and opens `problem` there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Process`] or [`ErrorKind::Open`] if it does not start, or cannot open the problem.
    pub fn spawn(
        command: impl Fn() -> Command + Send + 'static,
        problem: impl Into<String>,
        timeouts: Timeouts,
    ) -> Result<Self, Error> {
        Self::start(Box::new(command), problem.into(), timeouts, None)
    }

    /// As [`Self::spawn`], until `stop` returns true. The current request then fails with kind `Ended`, and the process
    /// is killed. `stop` is called often, on the thread that measures.
    ///
    /// # Errors
    ///
    /// As [`Self::spawn`].
    pub fn spawn_until(
        stop: impl Fn() -> bool + Send + 'static,
        command: impl Fn() -> Command + Send + 'static,
        problem: impl Into<String>,
        timeouts: Timeouts,
    ) -> Result<Self, Error> {
        Self::start(Box::new(command), problem.into(), timeouts, Some(Box::new(stop)))
    }

    fn start(
        command: Box<dyn Fn() -> Command + Send>,
        problem: String,
        timeouts: Timeouts,
        stop: Option<Stop>,
    ) -> Result<Self, Error> {
        let mut remote = Self {
            command,
            problem: String::new(),
            timeouts,
            configurations: Vec::new(),
            process: None,
            printed: String::new(),
            fatal_defaults: 0,
            lost: None,
            stop,
        };
        remote.reopen(problem)?;
        Ok(remote)
    }

    /// Opens another problem, in the same process if it is still alive.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Process`] or [`ErrorKind::Open`] if no process starts, or the problem cannot be opened.
    pub fn reopen(&mut self, problem: impl Into<String>) -> Result<(), Error> {
        (self.problem, self.fatal_defaults, self.lost) = (problem.into(), 0, None);
        let alive = self.take_alive();
        self.process = Some(self.open(alive)?);
        Ok(())
    }

    /// Why measuring has ended. Every later request then fails.
    #[must_use]
    pub const fn lost(&self) -> Option<&Error> {
        self.lost.as_ref()
    }

    /// The id of the measuring process, while there is one.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.group.id())
    }

    /// The end of the output since the last call; `None` without output.
    pub fn take_printed(&mut self) -> Option<String> {
        let mut printed = core::mem::take(&mut self.printed);
        if let Some(process) = &self.process {
            printed += &process.group.take_printed(Duration::ZERO);
        }
        Some(printed).filter(|printed| !printed.is_empty())
    }

    fn take_alive(&mut self) -> Option<Process> {
        let mut process = self.process.take()?;
        if process.group.end().is_none() {
            return Some(process);
        }
        self.keep_printed(&process);
        None
    }

    /// Keeps the output of a process that is no longer used.
    fn keep_printed(&mut self, process: &Process) {
        let printed = process.group.take_printed(CLOSING);
        if !printed.is_empty() {
            self.printed = printed;
        }
    }

    /// Opens the problem, in a new process if there is none.
    fn open(&mut self, alive: Option<Process>) -> Result<Process, Error> {
        // One time limit for the start and the request.
        let limit = Limit::new(self.timeouts.open, self.stop.as_ref());
        let is_new = alive.is_none();
        let mut process = match alive {
            Some(process) => process,
            None => Process::start((self.command)())
                .map_err(Error::with(ErrorKind::Process, "cannot start the measuring process"))?,
        };
        let ready = if is_new { process.wait_until_ready(limit) } else { Ok(()) };
        let request = Request::Open { problem: self.problem.clone() };
        match ready.and_then(|()| process.ask(&request, limit)) {
            Ok(configurations) => self.configurations = configurations,
            Err(failure) => return Err(not_opened(self.end(process, failure))),
        }
        Ok(process)
    }

    /// Kills a process after a failure, and adds to the failure if the process does not end.
    fn end(&mut self, mut process: Process, failure: MeasureFailure) -> MeasureFailure {
        let ended = process.group.kill(self.timeouts.kill);
        self.keep_printed(&process);
        match ended {
            Ok(()) => failure,
            Err(why) => MeasureFailure::new(FailureKind::Unended, format!("{failure}; {why}")),
        }
    }

    /// The process, or a new one if it has ended between requests.
    fn process(&mut self) -> Measured<Process> {
        if let Some(error) = &self.lost {
            return Err(gone(error));
        }
        if let Some(process) = self.take_alive() {
            return Ok(process);
        }
        for _ in 1..MAX_ATTEMPTS {
            match self.open(None) {
                Ok(process) => return Ok(process),
                Err(error) => match error.kind() {
                    // Asked to stop.
                    ErrorKind::Open(failure) if failure.kind == FailureKind::Ended => {
                        return Err(failure.clone());
                    }
                    _ => {}
                },
            }
            thread::sleep(BETWEEN_ATTEMPTS);
        }
        self.open(None).map_err(|error| gone(self.lost.insert(error)))
    }

    /// Sends a request about a candidate. A process with a fatal failure is killed.
    fn ask<T: DeserializeOwned>(
        &mut self,
        candidate: &Candidate,
        request: &Request,
    ) -> Measured<T> {
        let mut process = self.process()?;
        let mut result =
            process.ask(request, Limit::new(self.timeouts.request, self.stop.as_ref()));
        match result {
            Err(failure) if failure.kind.is_fatal() => {
                result = Err(self.end(process, failure));
            }
            _ => self.process = Some(process),
        }
        let fatal = result.as_ref().err().filter(|failure| failure.kind.is_fatal());
        let default = self.configurations.first().map(|first| &first.parameters);
        let is_automatic = candidate.choice == StoredChoice::Automatic;
        if is_automatic && default == Some(&candidate.parameters) {
            self.fatal_defaults = fatal.map_or(0, |_| self.fatal_defaults + 1);
            if let (Some(failure), times @ MAX_FATAL_DEFAULTS..) = (fatal, self.fatal_defaults) {
                let message = format!("the default was fatal {times} times in a row: {failure}");
                let lost = Error::new(ErrorKind::Process, message);
                self.lost = Some(lost.caused_by(failure.clone()));
            }
        }
        result
    }
}

impl Measurer for Remote {
    fn configurations(&mut self) -> Measured<Vec<LaunchConfig>> {
        Ok(self.configurations.clone())
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.ask(candidate, &Request::Check { candidate: candidate.clone() })
    }

    fn sample(&mut self, candidate: &Candidate, portion: Portion) -> Measured<Sample> {
        let request = Request::Sample { candidate: candidate.clone(), portion };
        let start = Instant::now();
        let sample: Sample = self.ask(candidate, &request)?;
        sample.checked_within(start.elapsed())
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.close(self.timeouts.close);
            // `unended_processes` lists a process that does not end.
            let _ = process.group.kill(self.timeouts.kill);
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("problem", &self.problem).finish_non_exhaustive()
    }
}

/// The failure of each request after measuring has ended.
fn not_opened(failure: MeasureFailure) -> Error {
    let message = format!("cannot open the problem: {failure}");
    Error::new(ErrorKind::Open(failure.clone()), message).caused_by(failure)
}

fn gone(why: impl fmt::Display) -> MeasureFailure {
    MeasureFailure::new(FailureKind::Ended, format!("measuring has ended: {why}"))
}

const MAX_ATTEMPTS: u32 = 3;
/// Between two attempts: a driver takes this long to clean up after a killed process.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(500);
/// Measuring ends after this many fatal failures of the default in a row.
const MAX_FATAL_DEFAULTS: u32 = 3;
