//! Runs a program within a time limit and an output limit.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use humantime::format_duration;
use serde::de::DeserializeOwned;

use super::finding::shorten;

/// The start of a line with a result, because libraries also print to standard output.
pub(super) const MARK: &str = "gridguard-doctor ";
/// The most bytes read of each stream; the programs write far less.
const MOST_BYTES: u64 = 1 << 20;
const POLL: Duration = Duration::from_millis(5);
/// How long to wait for the output after the exit, or for the exit after the last line. A descendant may keep the
/// pipe open, and a driver may hang while it unloads.
const GRACE: Duration = Duration::from_millis(500);

/// The output of a program, and whether it succeeded.
#[derive(Debug)]
pub(crate) struct ChildOutput {
    pub(crate) out: String,
    pub(super) err: String,
    pub(crate) end: Result<(), ChildError>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    #[error("{0}")]
    NotStarted(io::Error),
    #[error("no response within {}", format_duration(*.0))]
    TimedOut(Duration),
    /// The exit status and the last error message.
    #[error("{0}")]
    Crashed(String),
    #[error("unexpected output {0:?}")]
    Unexpected(String),
}

/// A Python that runs `code` and, as [`run`] does, takes nothing from the working directory: `-c` and relative folders
/// in Python's variables would import modules from there.
pub(crate) fn python(program: &Path, code: &str) -> Command {
    let mut command = Command::new(program);
    // Only Python 3.11 and later know the variable; in earlier ones the code removes the empty entry of `-c`.
    command.env("PYTHONSAFEPATH", "1").arg("-c");
    command.arg(format!("import sys; sys.path[:] = filter(None, sys.path)\n{code}"));
    for name in ["PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX"] {
        match absolute_folders(name) {
            Some(folders) => command.env(name, folders),
            None => command.env_remove(name),
        };
    }
    command
}

/// The absolute folders in a variable of the environment; `None` if it has none.
fn absolute_folders(name: &str) -> Option<OsString> {
    let variable = env::var_os(name)?;
    let absolute = env::split_paths(&variable).filter(|folder| folder.is_absolute());
    env::join_paths(absolute).ok().filter(|folders| !folders.is_empty())
}

/// Runs a program until it exits, writes a line that `is_last`, or reaches the time limit. Looks for it only in absolute
/// folders of `PATH`, because the working directory may be untrusted.
pub(crate) fn run(
    mut command: Command,
    limit: Duration,
    is_last: impl Fn(&str) -> bool,
) -> ChildOutput {
    let end = Err(ChildError::TimedOut(limit));
    let mut output = ChildOutput { out: String::new(), err: String::new(), end };
    // An empty `PATH` would be the working directory.
    command.env("PATH", absolute_folders("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut deadline = Instant::now() + limit;
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return ChildOutput { end: Err(ChildError::NotStarted(error)), ..output },
    };
    let (out, err) = (read_lines(child.stdout.take()), read_lines(child.stderr.take()));
    while Instant::now() < deadline {
        match out.recv_timeout(POLL) {
            Ok(line) => {
                if is_last(&line) {
                    deadline = deadline.min(Instant::now() + GRACE);
                }
                output.out += &line;
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL),
        }
        if let Ok(Some(status)) = child.try_wait() {
            output.out += &rest(&out);
            output.err = rest(&err);
            output.end = match last_line(&output.err).as_str() {
                _ if status.success() => Ok(()),
                // A script that stands for a program, such as pyenv's, does not find it.
                line if matches!(status.code(), Some(126 | 127)) => {
                    Err(ChildError::NotStarted(io::Error::other(line)))
                }
                "" => Err(ChildError::Crashed(status.to_string())),
                line => Err(ChildError::Crashed(format!("{status}, {line}"))),
            };
            return output;
        }
    }
    // Does not wait: the kernel may keep the process while a device hangs.
    let _ = child.kill();
    output
}

/// A result that a line states as JSON after [`MARK`].
pub(super) fn marked<T: DeserializeOwned>(line: &str) -> Option<T> {
    serde_json::from_str(line.strip_prefix(MARK)?).ok()
}

/// The last line that is not blank, which usually explains the exit.
pub(super) fn last_line(text: &str) -> String {
    shorten(text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default())
}

/// Reads lines with their line breaks, on a new thread.
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

fn rest(lines: &Receiver<String>) -> String {
    let deadline = Instant::now() + GRACE;
    let wait = || deadline.saturating_duration_since(Instant::now());
    std::iter::from_fn(|| lines.recv_timeout(wait()).ok()).collect()
}
