//! The measurer in a child process: a candidate that crashes or does not end takes only that with it.

mod line;
mod process;
mod protocol;
mod serve;

use core::fmt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use gridguard::profile::{Named, StoredChoice};

pub use line::LineError;
use process::Process;
use protocol::{Answer, Request};
pub use serve::{ProblemMeasurer, ServeError, serve};

use crate::candidate::{Candidate, LaunchConfig};
use crate::measurer::{FailureKind, MeasureFailure, Measurer};
use crate::sample::{Portion, Sample};

/// How long a measuring process may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To start and to open the problem: contexts, memory, the first compilation.
    pub open: Duration,
    /// For any request: a candidate's compilation, its check, its warm-up.
    pub request: Duration,
    /// For each sample of a request, in addition.
    pub sample: Duration,
    /// To end when it is told to.
    pub close: Duration,
}

impl Default for Timeouts {
    /// Two minutes to open, one for a request and 2 s for each sample, 5 s to end.
    fn default() -> Self {
        Self {
            open: Duration::from_secs(120),
            request: Duration::from_secs(60),
            sample: Duration::from_secs(2),
            close: Duration::from_secs(5),
        }
    }
}

/// Why nothing can be measured in a child process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// It does not start.
    #[error("the measuring process does not start: {0}")]
    Start(#[source] std::io::Error),
    /// It does not open the problem, or dies of that.
    #[error("the problem cannot be opened: {0}")]
    Open(#[source] MeasureFailure),
    /// The default itself takes one process after another with it.
    #[error("the default was fatal {times} times in a row: {failure}")]
    FatalDefault {
        /// How often.
        times: u32,
        /// The last time.
        #[source]
        failure: MeasureFailure,
    },
}

/// Checks and times candidates in a child process that runs [`serve`].
///
/// A candidate that takes the process with it, or does not answer in time, is answered with a
/// [`MeasureFailure`] of kind `Crash` or `Timeout`; the next request goes to a new process. The child ends
/// with this, and with the process that holds it.
pub struct Remote {
    command: Box<dyn Fn() -> Command + Send>,
    problem: String,
    patience: Timeouts,
    configurations: Vec<LaunchConfig>,
    process: Option<Process>,
    /// Processes that the default took in a row.
    fatal_defaults: u32,
    lost: Option<RemoteError>,
}

impl Remote {
    /// Starts `command` and opens `problem` there.
    ///
    /// # Errors
    ///
    /// [`RemoteError`] where it does not start, or cannot open the problem.
    pub fn spawn(
        command: impl Fn() -> Command + Send + 'static,
        problem: impl Into<String>,
        patience: Timeouts,
    ) -> Result<Self, RemoteError> {
        let mut remote = Self {
            command: Box::new(command),
            problem: problem.into(),
            patience,
            configurations: Vec::new(),
            process: None,
            fatal_defaults: 0,
            lost: None,
        };
        let (process, configurations) = remote.open()?;
        (remote.process, remote.configurations) = (Some(process), configurations);
        Ok(remote)
    }

    /// The launch with each set of parameters that is worth measuring, the default first.
    #[must_use]
    pub fn configurations(&self) -> &[LaunchConfig] {
        &self.configurations
    }

    /// Opens another problem, in the same process where that is still alive.
    ///
    /// # Errors
    ///
    /// [`RemoteError`] where no process starts, or the problem cannot be opened.
    pub fn reopen(&mut self, problem: impl Into<String>) -> Result<(), RemoteError> {
        (self.problem, self.fatal_defaults, self.lost) = (problem.into(), 0, None);
        let alive = self.process.take().map(|mut process| (process.is_alive(), process));
        let (process, configurations) = match alive {
            Some((true, process)) => self.open_in(process)?,
            _ => self.open()?,
        };
        (self.process, self.configurations) = (Some(process), configurations);
        Ok(())
    }

    /// Why nothing more can be measured: every later request fails for it.
    #[must_use]
    pub const fn lost(&self) -> Option<&RemoteError> {
        self.lost.as_ref()
    }

    /// The id of the measuring process, while there is one.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    fn open(&self) -> Result<(Process, Vec<LaunchConfig>), RemoteError> {
        let mut process = Process::start((self.command)()).map_err(RemoteError::Start)?;
        match process.greeted(self.patience.open) {
            Ok(()) => self.open_in(process),
            Err(broken) => Err(RemoteError::Open(process.into_failure(broken))),
        }
    }

    fn open_in(&self, mut process: Process) -> Result<(Process, Vec<LaunchConfig>), RemoteError> {
        let request = Request::Open { problem: self.problem.clone() };
        let failure = match process.ask(&request, self.patience.open) {
            Ok(Answer::Opened { configurations }) => {
                return Ok((process, configurations));
            }
            Ok(Answer::Failed { failure }) => failure,
            Ok(other) => process.into_failure(unexpected(&other)),
            Err(broken) => process.into_failure(broken),
        };
        Err(RemoteError::Open(failure))
    }

    /// The process, or a new one where it has ended: no candidate is to blame for the one before it.
    fn process(&mut self) -> Result<Process, MeasureFailure> {
        if let Some(error) = &self.lost {
            return Err(gone(error));
        }
        if let Some(mut process) = self.process.take()
            && process.is_alive()
        {
            return Ok(process);
        }
        let mut attempt = 1;
        let error = loop {
            match self.open() {
                Ok((process, _)) => return Ok(process),
                Err(error) if attempt == MOST_ATTEMPTS => break error,
                Err(_) => thread::sleep(BETWEEN_ATTEMPTS),
            }
            attempt += 1;
        };
        Err(gone(self.lost.insert(error)))
    }

    /// Asks about a candidate; `take` knows the answer that fits.
    fn ask<T>(
        &mut self,
        candidate: &Candidate,
        request: &Request,
        within: Duration,
        take: impl FnOnce(Answer) -> Result<T, Answer>,
    ) -> Result<T, MeasureFailure> {
        let mut process = self.process()?;
        let failure = match process.ask(request, within) {
            Ok(Answer::Failed { failure }) if failure.kind.is_fatal() => failure,
            Ok(Answer::Failed { failure }) => {
                self.keep(process, candidate);
                return Err(failure);
            }
            Ok(answer) => match take(answer) {
                Ok(taken) => {
                    self.keep(process, candidate);
                    return Ok(taken);
                }
                Err(other) => process.into_failure(unexpected(&other)),
            },
            Err(broken) => process.into_failure(broken),
        };
        self.note_death(candidate, &failure);
        Err(failure)
    }

    fn keep(&mut self, process: Process, candidate: &Candidate) {
        self.process = Some(process);
        if self.is_default(candidate) {
            self.fatal_defaults = 0;
        }
    }

    fn note_death(&mut self, candidate: &Candidate, failure: &MeasureFailure) {
        if self.is_default(candidate) {
            self.fatal_defaults += 1;
            if self.fatal_defaults >= MOST_FATAL_DEFAULTS {
                let (times, failure) = (self.fatal_defaults, failure.clone());
                self.lost = Some(RemoteError::FatalDefault { times, failure });
            }
        }
    }

    fn is_default(&self, candidate: &Candidate) -> bool {
        let parameters: Option<&Named> = self.configurations.first().map(|first| &first.parameters);
        parameters == Some(&candidate.parameters) && candidate.choice == StoredChoice::Automatic
    }
}

impl Measurer for Remote {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        let request = Request::Check { candidate: candidate.clone() };
        self.ask(candidate, &request, self.patience.request, |answer| match answer {
            Answer::Checked => Ok(()),
            other => Err(other),
        })
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
        count: u32,
    ) -> Result<Vec<Sample>, MeasureFailure> {
        let request = Request::Sample { candidate: candidate.clone(), portion, count };
        let samples = self.patience.sample.saturating_mul(count);
        let within = self.patience.request.saturating_add(samples);
        self.ask(candidate, &request, within, |answer| match answer {
            Answer::Sampled { samples } if are_times(&samples, count) => Ok(samples),
            other => Err(other),
        })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.close(self.patience.close);
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (problem, process) = (&self.problem, self.process_id());
        f.debug_struct("Remote")
            .field("problem", problem)
            .field("process", &process)
            .finish_non_exhaustive()
    }
}

/// Whether these are the times that were asked for.
fn are_times(samples: &[Sample], count: u32) -> bool {
    let is_time = |sample: &Sample| sample.time_ns.is_finite() && sample.time_ns > 0.0;
    u32::try_from(samples.len()) == Ok(count) && samples.iter().all(is_time)
}

fn unexpected(answer: &Answer) -> process::Broken {
    process::Broken::Garbled(format!("{answer:?}"))
}

/// The failure of a candidate that is not to blame.
fn gone(why: impl fmt::Display) -> MeasureFailure {
    MeasureFailure::new(FailureKind::Crash, format!("nothing can be measured any more: {why}"))
}

/// How often a process is started before that is given up.
const MOST_ATTEMPTS: u32 = 3;
/// Until the next one: a driver takes so long to clear away what a killed process left running.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(500);
/// The default's deaths that are no accident any more.
const MOST_FATAL_DEFAULTS: u32 = 3;
