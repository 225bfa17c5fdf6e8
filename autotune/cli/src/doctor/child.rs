//! Runs another program within a time limit and an output limit.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use humantime::format_duration;

use super::finding::shorten;

/// The most that is read of each stream; every program here writes far less.
const MOST_BYTES: u64 = 1 << 20;
/// How often the exit of a program is polled.
const POLL: Duration = Duration::from_millis(5);
/// How long to wait for the rest of the output after the exit, or for the exit after the last line.
/// A descendant may keep the pipe open, and a driver may hang while it unloads.
const GRACE: Duration = Duration::from_millis(500);
/// How long to wait for a killed program: the kernel may keep it while a device hangs.
const AFTER_KILL: Duration = Duration::from_millis(200);

/// What a program wrote, and whether it succeeded.
#[derive(Debug)]
pub(super) struct ChildOutput {
    pub(super) out: String,
    pub(super) err: String,
    pub(super) end: Result<(), ChildError>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    #[error("{0}")]
    NotStarted(io::Error),
    /// It was killed at the time limit.
    #[error("no response within {}", format_duration(*.0))]
    TimedOut(Duration),
    /// Its exit status and last error message.
    #[error("{0}")]
    Crashed(String),
}

/// Runs a program until it exits, until it writes a line that `is_last`, or until the time limit.
pub(super) fn run(
    mut command: Command,
    limit: Duration,
    is_last: impl Fn(&str) -> bool,
) -> ChildOutput {
    let (mut out, err) = (String::new(), String::new());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut deadline = Instant::now() + limit;
    let mut child = match command.spawn() {
        Ok(child) => KillOnDrop(child),
        Err(error) => return ChildOutput { out, err, end: Err(ChildError::NotStarted(error)) },
    };
    let out_lines = read_lines(child.0.stdout.take());
    let err_lines = read_lines(child.0.stderr.take());
    let status = loop {
        match out_lines.recv_timeout(POLL) {
            Ok(line) => {
                if is_last(&line) {
                    deadline = deadline.min(Instant::now() + GRACE);
                }
                out += &line;
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL),
        }
        if let Some(status) = child.status() {
            break status;
        }
        if Instant::now() >= deadline {
            return ChildOutput { out, err, end: Err(ChildError::TimedOut(limit)) };
        }
    };
    out += &rest(&out_lines);
    let err = rest(&err_lines);
    let end = match last_line(&err).as_str() {
        _ if status.success() => Ok(()),
        "" => Err(ChildError::Crashed(status.to_string())),
        line => Err(ChildError::Crashed(format!("{status}, {line}"))),
    };
    ChildOutput { out, err, end }
}

/// The last line that is not blank, where programs usually say why they exit.
pub(super) fn last_line(text: &str) -> String {
    shorten(text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default())
}

struct KillOnDrop(Child);

impl KillOnDrop {
    fn status(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let deadline = Instant::now() + AFTER_KILL;
        while self.status().is_none() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }
}

/// Reads lines on a thread of its own, each with its line break.
fn read_lines(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut stream = BufReader::new(stream?.take(MOST_BYTES));
        let mut line = Vec::new();
        while let Ok(1..) = stream.read_until(b'\n', &mut line) {
            sender.send(String::from_utf8_lossy(&line).into_owned()).ok()?;
            line.clear();
        }
        Some(())
    });
    receiver
}

/// The rest of the lines of a program that has exited.
fn rest(lines: &Receiver<String>) -> String {
    let deadline = Instant::now() + GRACE;
    let wait = || deadline.saturating_duration_since(Instant::now());
    std::iter::from_fn(|| lines.recv_timeout(wait()).ok()).collect()
}
