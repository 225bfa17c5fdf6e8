//! Another program's answer, within a time and a size.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// More than any program asked here has to say.
const MOST_BYTES: u64 = 1 << 20;
/// How often an end is looked for.
const PAUSE: Duration = Duration::from_millis(5);
/// How long the rest of an output may take after the program's end: who inherited it may hold it.
const AFTER_THE_END: Duration = Duration::from_millis(500);
/// How long the end of a program that was killed is waited for: one that the kernel holds for a
/// device that hangs does not die.
const AFTER_THE_KILL: Duration = Duration::from_millis(200);

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
pub(super) fn run(command: Command, within: Duration) -> Ended {
    let mut program = match Program::start(command) {
        Ok(program) => program,
        Err(error) => return Ended::Unstarted(error),
    };
    let mut out = String::new();
    let status = loop {
        match program.line() {
            Line::Told(line) => out = out + &line + "\n",
            Line::Late => {}
            Line::None => thread::sleep(PAUSE),
        }
        if let Some(status) = program.status() {
            break status;
        }
        if program.begun.elapsed() >= within {
            return Ended::Late;
        }
    };
    let deadline = Instant::now() + AFTER_THE_END;
    while let Line::Told(line) = program.line_until(deadline) {
        out = out + &line + "\n";
    }
    Ended::Exited { status, out, err: program.errors() }
}

/// A program that runs, and is ended with this.
pub(super) struct Program {
    child: Child,
    begun: Instant,
    lines: Receiver<String>,
    err: Receiver<String>,
}

/// What a program says next.
#[derive(Debug)]
pub(super) enum Line {
    Told(String),
    /// Nothing yet.
    Late,
    /// Nothing more.
    None,
}

impl Program {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let begun = Instant::now();
        let mut child = command.spawn()?;
        let (lines, err) = (mpsc::channel(), mpsc::channel());
        if let Some(stream) = child.stdout.take() {
            thread::spawn(move || each_line(stream, &lines.0));
        }
        if let Some(stream) = child.stderr.take() {
            thread::spawn(move || each_line(stream, &err.0));
        }
        Ok(Self { child, begun, lines: lines.1, err: err.1 })
    }

    pub(super) const fn begun(&self) -> Instant {
        self.begun
    }

    fn line(&self) -> Line {
        self.line_until(Instant::now() + PAUSE)
    }

    /// Its next line.
    pub(super) fn line_until(&self, deadline: Instant) -> Line {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => Line::Told(line),
            Err(RecvTimeoutError::Timeout) => Line::Late,
            Err(RecvTimeoutError::Disconnected) => Line::None,
        }
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// How it ended, where it does soon.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + AFTER_THE_END;
        loop {
            match self.status() {
                None if Instant::now() < deadline => thread::sleep(PAUSE),
                status => return status,
            }
        }
    }

    /// What it wrote on its standard error.
    pub(super) fn errors(&self) -> String {
        let deadline = Instant::now() + AFTER_THE_END;
        let mut text = String::new();
        while let Ok(line) =
            self.err.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            text = text + &line + "\n";
        }
        text
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended; and nothing more can be done where this fails.
        let _ = self.child.kill();
        let deadline = Instant::now() + AFTER_THE_KILL;
        while self.status().is_none() && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
    }
}

/// Sends the lines of `stream` as they come, and reads the rest where that is too much.
fn each_line(mut stream: impl Read, sender: &mpsc::Sender<String>) {
    let mut start = BufReader::new(stream.by_ref().take(MOST_BYTES));
    let mut bytes = Vec::new();
    // What was read before an error counts.
    while let Ok(1..) = start.read_until(b'\n', &mut bytes) {
        let text = String::from_utf8_lossy(&bytes);
        if sender.send(text.trim_end_matches(['\n', '\r']).to_owned()).is_err() {
            return;
        }
        bytes.clear();
    }
}

/// The last line that says something, which is where programs say why they ended.
pub(super) fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}
