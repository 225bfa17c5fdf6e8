//! A measuring process, as the tuner sees it.

use std::io::{self, BufReader, ErrorKind, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::protocol::{PROTOCOL, Request, Response, forward_lines, write_line};
use crate::failure::{FailureKind, MeasureFailure};

/// A child process that serves requests; it is killed on drop.
pub(super) struct Process {
    child: Child,
    requests: ChildStdin,
    responses: Receiver<io::Result<String>>,
    /// The end of its stderr, once that is closed.
    stderr: Receiver<String>,
}

impl Process {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C goes to the whole foreground group, but it is for the tuner to handle.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(requests), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::Error::other("the child process has no pipes"));
        };
        Ok(Self { child, requests, responses: lines_of(stdout), stderr: end_of(stderr) })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it serves. Other lines before, such as a banner, are ignored.
    pub(super) fn wait_until_ready(&mut self, within: Duration) -> Result<(), MeasureFailure> {
        let deadline = Instant::now() + within;
        loop {
            let line = self.line(deadline, within)?;
            match serde_json::from_str(&line) {
                Ok(Response::Serving { protocol: PROTOCOL }) => return Ok(()),
                Ok(_) => return Err(self.unexpected(&line)),
                Err(_) => {}
            }
        }
    }

    /// Sends a request and waits for the response; `take` accepts what fits the request. After a
    /// failure that is fatal the process must end.
    pub(super) fn ask<T>(
        &mut self,
        request: &Request,
        within: Duration,
        take: impl FnOnce(Response) -> Option<T>,
    ) -> Result<T, MeasureFailure> {
        let deadline = Instant::now() + within;
        write_line(&mut self.requests, request).map_err(|_| self.crash(CLOSED.to_owned()))?;
        let line = self.line(deadline, within)?;
        match serde_json::from_str(&line) {
            Ok(Response::Failed { failure }) => Err(failure),
            response => response.ok().and_then(take).ok_or_else(|| self.unexpected(&line)),
        }
    }

    fn line(&mut self, deadline: Instant, within: Duration) -> Result<String, MeasureFailure> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.responses.recv_timeout(left) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                Err(self.unexpected(&error.to_string()))
            }
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(self.crash(CLOSED.to_owned())),
            Err(RecvTimeoutError::Timeout) => {
                let message = format!("the measuring process did not respond within {within:?}");
                Err(MeasureFailure::new(FailureKind::Timeout, message))
            }
        }
    }

    /// A dying process may write something too, such as a test harness about a panic.
    fn unexpected(&mut self, line: &str) -> MeasureFailure {
        let start: String = line.chars().take(SHOWN_CHARACTERS).collect();
        self.crash(format!("the measuring process wrote {start:?}, which is not a response"))
    }

    /// A crash with the exit status and the end of stderr, or with `message` if it is still
    /// running.
    fn crash(&mut self, mut message: String) -> MeasureFailure {
        if let Some(status) = self.wait(DYING) {
            let stderr = self.stderr.recv_timeout(DYING).unwrap_or_default();
            let separator = if stderr.trim().is_empty() { "" } else { ": " };
            message = format!("the measuring process died ({status}){separator}{}", stderr.trim());
        }
        MeasureFailure::new(FailureKind::Crash, message)
    }

    /// Asks it to end, and kills it if it has not within the time.
    pub(super) fn close(mut self, within: Duration) {
        if write_line(&mut self.requests, &Request::Close).is_ok() {
            self.wait(within);
        }
    }

    /// Its exit status, if it ends within the time.
    fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both do nothing if it has ended, and nothing can be done if they fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of `output`, read by a thread of their own until it is closed.
fn lines_of(output: impl Read + Send + 'static) -> Receiver<io::Result<String>> {
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        forward_lines(&mut output, &send);
        drop(send);
        // The rest is read too, so that writing never blocks the process.
        let _ = io::copy(&mut output, &mut io::sink());
    });
    lines
}

/// The end of `output`, sent when it is closed.
fn end_of(mut output: impl Read + Send + 'static) -> Receiver<String> {
    let (send, end) = mpsc::channel();
    thread::spawn(move || {
        let (mut kept, mut buffer) = (Vec::new(), [0; KEPT_BYTES]);
        while let Ok(read @ 1..) = output.read(&mut buffer) {
            kept.extend_from_slice(buffer.get(..read).unwrap_or_default());
            kept.drain(..kept.len().saturating_sub(KEPT_BYTES));
        }
        // The receiver may be gone.
        let _ = send.send(String::from_utf8_lossy(&kept).into_owned());
    });
    end
}

const CLOSED: &str = "the measuring process closed its output";
/// How much of a process's stderr is kept: enough for a panic message and its location.
const KEPT_BYTES: usize = 2048;
/// How much of an unexpected line is shown.
const SHOWN_CHARACTERS: usize = 80;
/// How long a process that closed its output may take to end.
const DYING: Duration = Duration::from_secs(1);
/// Between two polls of its status.
const PAUSE: Duration = Duration::from_millis(2);
