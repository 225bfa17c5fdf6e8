//! Another program's answer, within a time and a size.

use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// More than any program asked here has to say.
const MOST_BYTES: u64 = 1 << 20;
/// How often an end is looked for.
const PAUSE: Duration = Duration::from_millis(5);
/// How long the rest of an output may take after the program's end: who inherited it may hold it.
const AFTER_THE_END: Duration = Duration::from_millis(500);

/// What became of a program.
#[derive(Debug)]
pub(super) enum Ended {
    /// It could not be started.
    Unstarted(io::Error),
    /// It was ended, since it took too long.
    Late,
    /// It ended by itself.
    Exited { status: ExitStatus, out: String, err: String },
}

/// Runs a program and waits for its end, at most so long.
pub(super) fn run(mut command: Command, within: Duration) -> Ended {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ended::Unstarted(error),
    };
    let (out, err) = (child.stdout.take().map(text_of), child.stderr.take().map(text_of));
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ended::Exited { status, out: rest(out), err: rest(err) },
            Ok(None) if begun.elapsed() < within => thread::sleep(PAUSE),
            Ok(None) | Err(_) => break,
        }
    }
    // Either may fail only where it has just ended.
    let _ = child.kill().and_then(|()| child.wait());
    Ended::Late
}

fn text_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error counts.
        let _ = stream.take(MOST_BYTES).read_to_end(&mut bytes);
        // Nobody may be waiting any more.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

fn rest(stream: Option<Receiver<String>>) -> String {
    stream.and_then(|text| text.recv_timeout(AFTER_THE_END).ok()).unwrap_or_default()
}

/// The last line that says something, which is where programs say why they ended.
pub(super) fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}
