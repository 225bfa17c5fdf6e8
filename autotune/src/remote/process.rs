//! A measuring process, as the tuner sees it.

use std::io::{self, BufReader, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::group::{KEPT_BYTES, Printed, ProcessGroup, Unended};
use super::protocol::{Numbered, PROTOCOL, Request, Response, line_queue};
use crate::failure::{FailureKind, MeasureFailure};
use crate::lines::write_line;

/// A child process that serves requests on a connection of its own; it is killed on drop.
pub(super) struct Process {
    group: ProcessGroup,
    connection: UnixStream,
    responses: Receiver<io::Result<String>>,
    last_request: u64,
}

impl Process {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        let (connection, inherited) = UnixStream::pair()?;
        // Standard input is the one descriptor that a child can be given without unsafe code;
        // `serve` moves it away from there.
        command.stdin(Stdio::from(OwnedFd::from(inherited)));
        let input = connection.try_clone()?;
        let group = ProcessGroup::start(command, KEPT_BYTES)?;
        let (send, responses) = line_queue();
        thread::Builder::new().spawn(move || send.forward(&mut BufReader::new(input)))?;
        Ok(Self { group, connection, responses, last_request: 0 })
    }

    pub(super) const fn id(&self) -> u32 {
        self.group.id()
    }

    pub(super) fn is_alive(&mut self) -> bool {
        self.group.end().is_none()
    }

    /// As [`ProcessGroup::take_printed`].
    pub(super) fn take_printed(&self, within: Duration) -> Printed {
        self.group.take_printed(within)
    }

    /// Waits until it serves, at most `within` after `start`.
    pub(super) fn wait_until_ready(
        &mut self,
        start: Instant,
        within: Duration,
    ) -> Result<(), MeasureFailure> {
        let line = self.line(start, within)?;
        match serde_json::from_str(&line) {
            Ok(Numbered { id: 0, message: Response::Serving { protocol: PROTOCOL } }) => Ok(()),
            _ => Err(self.unexpected(&line)),
        }
    }

    /// Sends a request and waits for its response, at most `within` after `start`; `take` accepts what
    /// fits the request. After a failure that is fatal the process must end.
    pub(super) fn ask<T>(
        &mut self,
        request: &Request,
        start: Instant,
        within: Duration,
        take: impl FnOnce(Response) -> Option<T>,
    ) -> Result<T, MeasureFailure> {
        self.send(request, start, within)?;
        let line = self.line(start, within)?;
        match serde_json::from_str(&line) {
            Ok(Numbered { id, message }) if id == self.last_request => match message {
                Response::Failed { failure } => Err(failure),
                response => take(response).ok_or_else(|| self.unexpected(&line)),
            },
            _ => Err(self.unexpected(&line)),
        }
    }

    fn send(
        &mut self,
        request: &Request,
        start: Instant,
        within: Duration,
    ) -> Result<(), MeasureFailure> {
        self.last_request += 1;
        let numbered = Numbered { id: self.last_request, message: request };
        // Zero would be no limit.
        let limit = within.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        let limited = self.connection.set_write_timeout(Some(limit));
        match limited.and_then(|()| write_line(&mut self.connection, &numbered)) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Err(MeasureFailure::new(FailureKind::Launch, error.to_string()))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(timeout(within)),
            Err(_) => Err(self.crash(CLOSED.to_owned())),
        }
    }

    fn line(&mut self, start: Instant, within: Duration) -> Result<String, MeasureFailure> {
        match self.responses.recv_timeout(within.saturating_sub(start.elapsed())) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                Err(self.unexpected(&error.to_string()))
            }
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(self.crash(CLOSED.to_owned())),
            Err(RecvTimeoutError::Timeout) => Err(timeout(within)),
        }
    }

    fn unexpected(&mut self, line: &str) -> MeasureFailure {
        let start: String = line.chars().take(SHOWN_CHARACTERS).collect();
        let expected = match self.last_request {
            0 => "the greeting".to_owned(),
            number => format!("the response to request {number}"),
        };
        self.crash(format!("the measuring process sent {start:?}, which is not {expected}"))
    }

    /// A crash with the exit status and the end of stderr, or with `message` if it is still
    /// running.
    fn crash(&mut self, mut message: String) -> MeasureFailure {
        if let Some(end) = self.group.wait(DYING) {
            let stderr = self.group.stderr(DYING).to_string();
            let separator = if stderr.trim().is_empty() { "" } else { ": " };
            message = format!("the measuring process died ({end}){separator}{}", stderr.trim());
        }
        MeasureFailure::new(FailureKind::Crash, message)
    }

    /// Asks it to end, and waits for that.
    pub(super) fn close(&mut self, within: Duration) {
        if self.send(&Request::Close, Instant::now(), within).is_ok() {
            self.group.wait(within);
        }
    }

    /// Kills it with all processes that it started, if it has not ended.
    pub(super) fn kill(&mut self, within: Duration) -> Result<(), Unended> {
        self.group.kill(within)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ends the thread that reads, even if the process keeps its end open.
        let _ = self.connection.shutdown(Shutdown::Both);
    }
}

fn timeout(within: Duration) -> MeasureFailure {
    let message = format!("the measuring process did not respond within {within:?}");
    MeasureFailure::new(FailureKind::Timeout, message)
}

const CLOSED: &str = "the measuring process closed its connection";
/// How much of an unexpected line is shown.
const SHOWN_CHARACTERS: usize = 80;
/// How long a process that closed its connection may take to end, and its stderr to be read.
const DYING: Duration = Duration::from_secs(1);
