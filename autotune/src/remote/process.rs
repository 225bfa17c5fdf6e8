//! The tuner's end of a measuring process.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::group::{CLOSING, KEPT_BYTES, ProcessGroup};
use super::protocol::{MAX_LINE_BYTES, Numbered, PROTOCOL, Request, read_lines};
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::lines::{shown, write_line};

/// A child process that serves requests on a connection of its own; it is killed on drop.
pub(super) struct Process {
    pub(super) group: ProcessGroup,
    connection: UnixStream,
    responses: Receiver<io::Result<String>>,
    last_request: u64,
}

/// Returns true once measuring must end. Asked on the tuner's thread.
pub(super) type Stop = Box<dyn Fn() -> bool + Send>;

/// A time limit for one or several steps, which also end once `stop` returns true.
#[derive(Clone, Copy)]
pub(super) struct Limit<'a> {
    start: Instant,
    within: Duration,
    stop: Option<&'a Stop>,
}

impl<'a> Limit<'a> {
    pub(super) fn new(within: Duration, stop: Option<&'a Stop>) -> Self {
        Self { start: Instant::now(), within, stop }
    }

    fn left(self) -> Duration {
        self.within.saturating_sub(self.start.elapsed())
    }

    fn exceeded(self) -> MeasureFailure {
        let message = format!("the measuring process did not respond within {:?}", self.within);
        MeasureFailure::new(FailureKind::Timeout, message)
    }
}

impl Process {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        let (connection, inherited) = UnixStream::pair()?;
        // The standard library passes only standard streams to a child; `serve` moves this one.
        command.stdin(Stdio::from(OwnedFd::from(inherited)));
        let input = connection.try_clone()?;
        let group = ProcessGroup::start(command, KEPT_BYTES)?;
        let responses = read_lines(input, || {})?;
        Ok(Self { group, connection, responses, last_request: 0 })
    }

    /// Waits for the greeting.
    pub(super) fn wait_until_ready(&mut self, limit: Limit<'_>) -> Measured<()> {
        match self.receive(limit)? {
            PROTOCOL => Ok(()),
            other => Err(self.unexpected(&format!("protocol {other}"))),
        }
    }

    /// Sends a request and waits for its response. The process must end after a fatal failure.
    pub(super) fn ask<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        limit: Limit<'_>,
    ) -> Measured<T> {
        self.send(request, limit)?;
        self.receive(limit)
    }

    fn send(&mut self, request: &Request, limit: Limit<'_>) -> Measured<()> {
        self.last_request += 1;
        let numbered = Numbered { id: self.last_request, message: request };
        // Zero would be no limit.
        let left = limit.left().max(Duration::from_millis(1));
        let limited = self.connection.set_write_timeout(Some(left));
        let sent =
            limited.and_then(|()| write_line(&mut self.connection, &numbered, MAX_LINE_BYTES));
        sent.map_err(|error| match error.kind() {
            ErrorKind::InvalidData => MeasureFailure::new(FailureKind::Launch, error.to_string()),
            ErrorKind::WouldBlock => limit.exceeded(),
            _ => self.crash(CLOSED.to_owned()),
        })
    }

    /// The response to the last request.
    fn receive<T: DeserializeOwned>(&mut self, limit: Limit<'_>) -> Measured<T> {
        let received = loop {
            if limit.stop.is_some_and(|stop| stop()) {
                return Err(MeasureFailure::new(FailureKind::Ended, "measuring was interrupted"));
            }
            let left = limit.left();
            let wait = if limit.stop.is_some() { left.min(BETWEEN_LOOKS) } else { left };
            match self.responses.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) if wait < left => {}
                received => break received,
            }
        };
        let line = match received {
            Ok(Ok(line)) => line,
            Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                return Err(self.unexpected(&error.to_string()));
            }
            Err(RecvTimeoutError::Timeout) => return Err(limit.exceeded()),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                return Err(self.crash(CLOSED.to_owned()));
            }
        };
        match serde_json::from_str(&line) {
            Ok(Numbered { id, message }) if id == self.last_request => message,
            _ => Err(self.unexpected(&line)),
        }
    }

    fn unexpected(&mut self, line: &str) -> MeasureFailure {
        let expected = match self.last_request {
            0 => "the greeting".to_owned(),
            number => format!("the response to request {number}"),
        };
        let line = shown(line);
        self.crash(format!("the measuring process sent {line}, which is not {expected}"))
    }

    /// A crash with the exit status and the end of stderr, or with `message` if the process still runs.
    fn crash(&mut self, mut message: String) -> MeasureFailure {
        if let Some(end) = self.group.wait(CLOSING) {
            let stderr = self.group.stderr(CLOSING);
            let separator = if stderr.trim().is_empty() { "" } else { ": " };
            message = format!("the measuring process died ({end}){separator}{}", stderr.trim());
        }
        MeasureFailure::new(FailureKind::Crash, message)
    }

    pub(super) fn close(&mut self, within: Duration) {
        if self.send(&Request::Close, Limit::new(within, None)).is_ok() {
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

const CLOSED: &str = "the measuring process closed its connection";
/// Between two looks whether measuring must end. A person does not notice this delay.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
