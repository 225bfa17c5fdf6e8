//! A measuring process, seen from the tuner.

use std::io::{self, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::line::{LineError, read_line};
use super::protocol::{Answer, PROTOCOL, Request};
use crate::measurer::{FailureKind, MeasureFailure};

/// A child that serves. It does not outlive this.
pub(super) struct Process {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<Result<String, LineError>>,
    /// The end of its stderr, once that is closed.
    last_words: Receiver<String>,
}

/// Why an answer did not come.
#[derive(Debug)]
pub(super) enum Broken {
    /// Not within the time.
    Late(Duration),
    /// The process ended, or closed its output.
    Ended,
    /// It said something else.
    Garbled(String),
}

impl Process {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C goes to the whole group in the foreground: what it means is the tuner's to say.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(requests), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::Error::other("a process without pipes"));
        };
        let (answers, last_words) = (lines_of(stdout), end_of(stderr));
        Ok(Self { child, requests, answers, last_words })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it serves. What it writes before is none of ours.
    pub(super) fn greeted(&mut self, within: Duration) -> Result<(), Broken> {
        let deadline = Instant::now() + within;
        loop {
            let line = self.line(deadline, within)?;
            match serde_json::from_str(&line) {
                Ok(Answer::Serving { protocol: PROTOCOL }) => return Ok(()),
                Ok(_) => return Err(Broken::Garbled(line)),
                Err(_) => {}
            }
        }
    }

    /// Asks and waits for the answer.
    pub(super) fn ask(&mut self, request: &Request, within: Duration) -> Result<Answer, Broken> {
        let deadline = Instant::now() + within;
        self.say(request).map_err(|_| Broken::Ended)?;
        let line = self.line(deadline, within)?;
        serde_json::from_str(&line).map_err(|_| Broken::Garbled(line))
    }

    fn say(&mut self, request: &Request) -> io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.requests.write_all(&line)?;
        self.requests.flush()
    }

    fn line(&mut self, deadline: Instant, within: Duration) -> Result<String, Broken> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.answers.recv_timeout(left) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error @ (LineError::TooLong | LineError::NotText))) => {
                Err(Broken::Garbled(error.to_string()))
            }
            Ok(Err(LineError::Cut | LineError::Io(_))) => Err(Broken::Ended),
            Err(RecvTimeoutError::Disconnected) => Err(Broken::Ended),
            Err(RecvTimeoutError::Timeout) => Err(Broken::Late(within)),
        }
    }

    /// Ends it, and says what became of it.
    pub(super) fn into_failure(mut self, broken: Broken) -> MeasureFailure {
        match broken {
            Broken::Late(within) => {
                let message = format!("its process did not answer within {within:?}");
                MeasureFailure::new(FailureKind::Timeout, message)
            }
            // What it says while it dies, such as a program around it of a panic, is no answer either.
            Broken::Garbled(line) => {
                let start: String = line.chars().take(SHOWN_CHARACTERS).collect();
                let alive = || format!("its process answered {start:?}, which is no answer");
                self.crash(alive)
            }
            Broken::Ended => self.crash(|| "its process closed its output".to_owned()),
        }
    }

    /// What it died of, with its last words; `alive` says what it did where it has not.
    fn crash(&mut self, alive: impl FnOnce() -> String) -> MeasureFailure {
        let Some(status) = self.wait(DYING) else {
            return MeasureFailure::new(FailureKind::Crash, alive());
        };
        let words = self.last_words.recv_timeout(DYING).unwrap_or_default();
        let separator = if words.trim().is_empty() { "" } else { ": " };
        let message = format!("its process died ({status}){separator}{}", words.trim());
        MeasureFailure::new(FailureKind::Crash, message)
    }

    /// Asks it to end and waits so long; then it is killed.
    pub(super) fn close(mut self, within: Duration) {
        if self.say(&Request::Close).is_ok() {
            self.wait(within);
        }
    }

    /// Its status, once it has ended by itself.
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
        // Nothing more can be done where these fail, and where it has ended they do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of `output`, read as they come; all that is left where nobody wants them any more.
fn lines_of(output: impl Read + Send + 'static) -> Receiver<Result<String, LineError>> {
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        while let Some(line) = read_line(&mut output).transpose() {
            let last = line.is_err();
            if send.send(line).is_err() || last {
                break;
            }
        }
        drop(send);
        // Nothing that it writes at its end may block it.
        let _ = io::copy(&mut output, &mut io::sink());
    });
    lines
}

/// The end of `output`, given when it is closed.
fn end_of(mut output: impl Read + Send + 'static) -> Receiver<String> {
    let (send, end) = mpsc::channel();
    thread::spawn(move || {
        let (mut kept, mut buffer) = (Vec::new(), [0; LAST_WORDS_BYTES]);
        while let Ok(read @ 1..) = output.read(&mut buffer) {
            kept.extend_from_slice(buffer.get(..read).unwrap_or_default());
            kept.drain(..kept.len().saturating_sub(LAST_WORDS_BYTES));
        }
        // A tuner that does not ask has no use for it.
        let _ = send.send(String::from_utf8_lossy(&kept).into_owned());
    });
    end
}

/// How much of a process's stderr is kept: a panic's message with its place.
const LAST_WORDS_BYTES: usize = 2048;
/// How much of a wrong answer is shown.
const SHOWN_CHARACTERS: usize = 80;
/// How long a process that closed its output may take to end.
const DYING: Duration = Duration::from_secs(1);
/// Between two looks whether it has.
const PAUSE: Duration = Duration::from_millis(2);
