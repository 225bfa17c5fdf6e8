//! Runs another program within a time limit and an output limit.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The most that is read of each stream; every program here writes far less.
const MOST_BYTES: u64 = 1 << 20;
/// How often the exit of a program is polled.
const POLL: Duration = Duration::from_millis(5);
/// How long to wait for the rest of the output after the exit, or for the exit after the last line.
/// A descendant may keep the pipe open, and a driver may hang while it unloads.
const GRACE: Duration = Duration::from_millis(500);
/// How long to wait for a killed program: the kernel may keep it while a device hangs.
const AFTER_KILL: Duration = Duration::from_millis(200);

/// How a program ended, and what it wrote until then.
#[derive(Debug)]
pub(super) struct ChildOutput {
    pub(super) end: ChildEnd,
    pub(super) out: String,
    pub(super) err: String,
}

#[derive(Debug)]
pub(super) enum ChildEnd {
    NotStarted(io::Error),
    /// It was killed at the time limit.
    TimedOut,
    Exited(ExitStatus),
}

/// Runs a program until it exits, until it writes a line that `is_last`, or until the time limit.
pub(super) fn run(
    mut command: Command,
    limit: Duration,
    is_last: impl Fn(&str) -> bool,
) -> ChildOutput {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = match command.spawn() {
        Ok(child) => KillOnDrop(child),
        Err(error) => {
            let end = ChildEnd::NotStarted(error);
            return ChildOutput { end, out: String::new(), err: String::new() };
        }
    };
    let out = child.0.stdout.take().map(read_lines);
    let err = child.0.stderr.take().map(read_lines);
    let mut text = String::new();
    let mut deadline = start + limit;
    let end = loop {
        match out.as_ref().map(|lines| lines.recv_timeout(POLL)) {
            Some(Ok(line)) => {
                if is_last(&line) {
                    deadline = deadline.min(Instant::now() + GRACE);
                }
                text += &line;
                continue;
            }
            Some(Err(RecvTimeoutError::Timeout)) => {}
            Some(Err(RecvTimeoutError::Disconnected)) | None => thread::sleep(POLL),
        }
        if let Some(status) = child.status() {
            text += &drain(out.as_ref());
            break ChildEnd::Exited(status);
        }
        if Instant::now() >= deadline {
            break ChildEnd::TimedOut;
        }
    };
    let err = match end {
        ChildEnd::Exited(_) => drain(err.as_ref()),
        _ => String::new(),
    };
    ChildOutput { end, out: text, err }
}

/// The last line that is not blank, where programs usually say why they exit.
pub(super) fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
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
fn read_lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut stream = BufReader::new(stream.take(MOST_BYTES));
        let mut line = Vec::new();
        while let Ok(1..) = stream.read_until(b'\n', &mut line) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

/// The rest of the lines of a program that has exited.
fn drain(lines: Option<&Receiver<String>>) -> String {
    let deadline = Instant::now() + GRACE;
    let next = || {
        let wait = deadline.saturating_duration_since(Instant::now());
        lines.and_then(|lines| lines.recv_timeout(wait).ok())
    };
    std::iter::from_fn(next).collect()
}
