//! The tuner's end of a measuring process.

use std::io::{self, BufReader, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::group::{KEPT_BYTES, ProcessGroup};
use super::protocol::{Numbered, PROTOCOL, Request, Response, line_queue};
use crate::failure::{FailureKind, MeasureFailure};
use crate::lines::write_line;

/// A child process that serves requests on a connection of its own; it is killed on drop.
pub(super) struct Process {
    pub(super) group: ProcessGroup,
    connection: UnixStream,
    responses: Receiver<io::Result<String>>,
    last_request: u64,
}

impl Process {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        let (connection, inherited) = UnixStream::pair()?;
        // The standard library passes only standard streams to a child; `serve` moves this one.
        command.stdin(Stdio::from(OwnedFd::from(inherited)));
        let input = connection.try_clone()?;
        let group = ProcessGroup::start(command, KEPT_BYTES)?;
        let (send, responses) = line_queue();
        thread::Builder::new().spawn(move || send.forward(&mut BufReader::new(input)))?;
        Ok(Self { group, connection, responses, last_request: 0 })
    }

    /// Waits for the greeting, until `within` after `start`.
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

    /// Sends a request and waits for its response, until `within` after `start`. `take` accepts a response
    /// that fits the request. The process must end after a fatal failure.
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

    /// A crash with the exit status and the end of stderr, or with `message` if the process still runs.
    fn crash(&mut self, mut message: String) -> MeasureFailure {
        if let Some(end) = self.group.wait(DYING) {
            let stderr = self.group.stderr(DYING).to_string();
            let separator = if stderr.trim().is_empty() { "" } else { ": " };
            message = format!("the measuring process died ({end}){separator}{}", stderr.trim());
        }
        MeasureFailure::new(FailureKind::Crash, message)
    }

    pub(super) fn close(&mut self, within: Duration) {
        if self.send(&Request::Close, Instant::now(), within).is_ok() {
            self.group.wait(within);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ends the reading thread, even if the process keeps its end open.
        let _ = self.connection.shutdown(Shutdown::Both);
    }
}

fn timeout(within: Duration) -> MeasureFailure {
    let message = format!("the measuring process did not respond within {within:?}");
    MeasureFailure::new(FailureKind::Timeout, message)
}

const CLOSED: &str = "the measuring process closed its connection";
const SHOWN_CHARACTERS: usize = 80;
/// How long to wait for the end and the stderr of a process that closed its connection.
const DYING: Duration = Duration::from_secs(1);
