//! The measurer that runs a program for each candidate.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::io::Errno;

use super::problem::ProgramProblem;
use super::report::times_ns;
use crate::candidate::Candidate;
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::measure::{CLOCK_DEVIATION, Measurer, Portion, Sample};
use crate::remote::group::{CLOSING, End, ProcessGroup};

/// Checks and times candidates by running the program of a [`ProgramProblem`].
///
/// The program warms up, checks its output, measures, and exits with 0. It prints at least one line such
/// as this one to standard output:
///
/// ```json
/// {"ms": [0.361, 0.358, 0.360], "check": "ok"}
/// ```
///
/// `ms` is one time in milliseconds or a list of consecutive times. The times of several lines add up.
/// Any `check` other than `"ok"` means that the output is wrong. Other output is ignored. Each time
/// is one sample. The program runs again when the times of a candidate are used up.
///
/// The candidate fails if its program cannot be started, dies, exits with another code, prints no time,
/// or exceeds the timeout. So does a candidate whose times add up to more than its process took. The
/// program runs in a process group of its own, which is killed when the program ends.
#[derive(Debug)]
pub struct ProgramMeasurer<'a> {
    problem: ProgramProblem,
    timeout: Duration,
    environment: Vec<(String, String)>,
    interrupt: Option<&'a AtomicBool>,
    /// Unused times in nanoseconds.
    times: BTreeMap<Candidate, VecDeque<f64>>,
}

impl<'a> ProgramMeasurer<'a> {
    /// Runs the program of `problem`, each time for at most `timeout`.
    #[must_use]
    pub const fn new(problem: ProgramProblem, timeout: Duration) -> Self {
        let times = BTreeMap::new();
        Self { problem, timeout, environment: Vec::new(), interrupt: None, times }
    }

    /// Sets an environment variable of the program.
    #[must_use]
    pub fn environment(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Ends a running program once the flag is set. Measuring has then [ended](FailureKind::Ended).
    #[must_use]
    pub const fn interrupt(mut self, flag: &'a AtomicBool) -> Self {
        self.interrupt = Some(flag);
        self
    }

    fn run(&mut self, candidate: &Candidate) -> Measured<()> {
        let words = self.problem.command_line(candidate);
        let Some((program, arguments)) = words.split_first() else { return Ok(()) };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let start = Instant::now();
        let mut group = ProcessGroup::start(command, KEPT_BYTES).map_err(|error| {
            failure(start_failure(&error), format!("cannot start {program}: {error}"))
        })?;
        let end = self.wait(&mut group, start)?;
        let elapsed = start.elapsed();
        check_end(end, &group)?;
        // The mark for dropped output makes an incomplete first line invalid.
        let times = times_ns(&group.take_printed(CLOSING))?;
        let sum_ms = times.iter().sum::<f64>() / 1e6;
        let elapsed_ms = elapsed.as_secs_f64() * 1e3;
        if sum_ms > elapsed_ms * (1.0 + CLOCK_DEVIATION) {
            return Err(failure(
                FailureKind::Launch,
                format!(
                    "the program printed times of {sum_ms:.3} ms together, but its process only took \
                     {elapsed_ms:.3} ms: are they in milliseconds?"
                ),
            ));
        }
        let used = times.len().saturating_sub(MAX_TIMES);
        self.times.insert(candidate.clone(), times.into_iter().skip(used).collect());
        Ok(())
    }

    /// How the program ends, within the timeout.
    fn wait(&self, group: &mut ProcessGroup, start: Instant) -> Measured<End> {
        loop {
            let left = self.timeout.saturating_sub(start.elapsed());
            if let Some(end) = group.wait(left.min(POLL)) {
                return Ok(end);
            }
            let is_interrupted = self.interrupt.is_some_and(|flag| flag.load(Ordering::Relaxed));
            let (kind, message) = if is_interrupted {
                (FailureKind::Ended, "measuring was interrupted".to_owned())
            } else if left.is_zero() {
                let timeout = self.timeout;
                (FailureKind::Timeout, format!("the program did not end within {timeout:?}"))
            } else {
                continue;
            };
            return Err(match group.kill(KILLING) {
                Ok(()) => failure(kind, message),
                Err(unended) if is_interrupted => failure(kind, format!("{message}; {unended}")),
                Err(unended) => failure(FailureKind::Unended, format!("{message}; {unended}")),
            });
        }
    }
}

impl Measurer for ProgramMeasurer<'_> {
    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.run(candidate)
    }

    fn sample(&mut self, candidate: &Candidate, portion: Portion) -> Measured<Sample> {
        if portion == Portion::LargestLaunch {
            let message = "a program times all of its launches together";
            return Err(failure(FailureKind::Launch, message));
        }
        if self.times.get(candidate).is_none_or(VecDeque::is_empty) {
            self.run(candidate)?;
        }
        let next = self.times.get_mut(candidate).and_then(VecDeque::pop_front);
        let none = || failure(FailureKind::Launch, "the program printed no time");
        Sample { time_ns: next.ok_or_else(none)?, clock_mhz: None, disturbed: false }.checked()
    }
}

/// Fails unless the program exited with 0. Shows the last line of standard error first, which usually
/// names the cause.
fn check_end(end: End, group: &ProcessGroup) -> Measured<()> {
    let End::Status(status) = end else {
        // The system discarded the status, so only the output decides.
        return Ok(());
    };
    if status.success() {
        return Ok(());
    }
    let stderr = group.stderr(CLOSING);
    let said = match stderr.trim().rsplit_once('\n') {
        Some((before, last)) => format!(": {last}\n{before}"),
        None if stderr.trim().is_empty() => String::new(),
        None => format!(": {}", stderr.trim()),
    };
    Err(match status.signal() {
        Some(_) => failure(FailureKind::Crash, format!("the program died ({end}){said}")),
        None => failure(FailureKind::Launch, format!("the program failed ({end}){said}")),
    })
}

/// Whether the machine or this candidate is the cause of a failed start.
fn start_failure(error: &io::Error) -> FailureKind {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => FailureKind::Ended,
        _ => FailureKind::Launch,
    }
}

fn failure(kind: FailureKind, message: impl fmt::Display) -> MeasureFailure {
    MeasureFailure::new(kind, message.to_string())
}

/// Bytes of output that are kept: enough for thousands of times.
const KEPT_BYTES: usize = 64 * 1024;
/// Times used of one process: no candidate takes more samples.
const MAX_TIMES: usize = 64;
const POLL: Duration = Duration::from_millis(100);
/// How long a killed program may take to end.
const KILLING: Duration = Duration::from_secs(5);
