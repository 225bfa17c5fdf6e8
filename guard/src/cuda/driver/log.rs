//! The driver's log: drivers since CUDA 12.9 explain there why they refused a call.

use std::collections::VecDeque;

use derive_more::Display;
use parking_lot::Mutex;

use crate::cuda::driver::symbols::Driver;

/// Bytes of the driver's whole log.
const LOG_BYTES: usize = 25_600;
/// Lines kept for other threads, as many as the driver keeps.
const KEPT: usize = 100;
/// Lines that an error quotes: one call logs one or two.
const REPEATED: usize = 4;

/// What the driver logged about a call that failed.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display("driver log{}: {text}", if *may_be_of_another_thread { " (maybe of another thread)" } else { "" })]
#[non_exhaustive]
pub struct DriverLog {
    /// The messages, without time and thread.
    pub text: String,
    /// Whether this may be about a call of another thread: the log is shared by the process, and no
    /// line in it is known to come from this thread.
    pub may_be_of_another_thread: bool,
}

/// How far the driver's log was read, and the lines that no thread has taken yet.
struct Log {
    position: LogPosition,
    waiting: VecDeque<String>,
}

static LOG: Mutex<Log> = Mutex::new(Log { position: LogPosition(0), waiting: VecDeque::new() });

/// Skips the current entries of the log.
pub(crate) fn begin(driver: &Driver) {
    if let Some(position) = LogPosition::now(driver) {
        LOG.lock().position = position;
    }
}

/// A position in the driver's log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogPosition(u32);

impl LogPosition {
    /// The end of the log, where messages about the next call begin, if the driver has a log. Too
    /// slow for launches.
    pub(crate) fn now(driver: &Driver) -> Option<Self> {
        let mut position = 0;
        let current = driver.logs_current?;
        // SAFETY: the pointer is to a live integer, and zero is the only legal flag.
        let status = unsafe { current(&raw mut position, 0) };
        (status == 0).then_some(Self(position))
    }
}

/// Discards the log entries of this thread about a call that was expected to fail.
pub(crate) fn discard(driver: &Driver) {
    drop(since(driver, "", None));
}

/// What the driver logged on this thread since `start`, or since the log was last read: only the messages about `call`,
/// if there are any.
pub(crate) fn since(driver: &Driver, call: &str, start: Option<LogPosition>) -> Option<DriverLog> {
    let mut log = LOG.lock();
    let of_call = start.and_then(|mut position| read(driver, &mut position));
    let fresh = read(driver, &mut log.position)?;
    let own = own_thread();
    let is_own = |line: &str| Line::parse(line).thread.is_some_and(|it| Some(it) == own.as_deref());
    log.waiting.extend(fresh.lines().map(str::to_owned));
    let (ours, others) = log.waiting.drain(..).partition(|line| is_own(line));
    log.waiting = others;
    let surplus = log.waiting.len().saturating_sub(KEPT);
    log.waiting.drain(..surplus);
    let mut ours: VecDeque<String> = ours;
    // Older lines of this thread are about calls that bypassed the guard.
    let fresh = of_call.unwrap_or(fresh);
    if start.is_some() {
        ours = fresh.lines().filter(|line| is_own(line)).map(str::to_owned).collect();
    }
    let may_be_of_another_thread = ours.is_empty();
    let text = match may_be_of_another_thread {
        true => text(fresh.lines(), call),
        false => text(ours.iter().map(String::as_str), call),
    };
    (!text.is_empty()).then_some(DriverLog { text, may_be_of_another_thread })
}

/// What was logged since `position`, which advances to the end.
fn read(driver: &Driver, LogPosition(position): &mut LogPosition) -> Option<String> {
    let dump = driver.logs_dump_to_memory?;
    let mut bytes = vec![0_u8; LOG_BYTES];
    let mut size = bytes.len();
    // SAFETY: `size` is the length of the buffer, `position` points to a live integer, and zero is
    // the only legal flag.
    let status = unsafe { dump(position, bytes.as_mut_ptr().cast(), &raw mut size, 0) };
    let text = bytes.get(..size).filter(|_| status == 0).unwrap_or_default();
    Some(String::from_utf8_lossy(text).trim_matches(['\0', '\n']).to_owned())
}

/// This thread's id, as in the driver's log.
fn own_thread() -> Option<String> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

/// The last messages of `lines`: only the messages about `call`, if there are any.
fn text<'a>(lines: impl Iterator<Item = &'a str>, call: &str) -> String {
    let lines: Vec<_> = lines.map(Line::parse).filter(Line::says_more_than_the_code).collect();
    let about: Vec<_> = lines.iter().filter(|line| line.call == Some(call)).collect();
    let chosen = if about.is_empty() { lines.iter().collect() } else { about };
    let last = chosen.get(chosen.len().saturating_sub(REPEATED)..).unwrap_or_default();
    last.iter().map(|line| line.message).collect::<Vec<_>>().join("; ")
}

/// `[time][thread][source][severity][call] message`; newer drivers omit the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Line<'a> {
    thread: Option<&'a str>,
    call: Option<&'a str>,
    message: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let mut parsed = Self { message: line, ..Self::default() };
        for place in 0..5 {
            let rest = parsed.message.strip_prefix('[');
            let Some((field, rest)) = rest.and_then(|rest| rest.split_once(']')) else { break };
            match place {
                1 => parsed.thread = Some(field),
                4 => parsed.call = Some(field),
                _ => {}
            }
            parsed.message = rest;
        }
        parsed.message = parsed.message.trim();
        parsed
    }

    /// Newer drivers end with `Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunchKernel`.
    fn says_more_than_the_code(&self) -> bool {
        !self.message.is_empty() && !self.message.starts_with("Returning ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_older_and_newer_drivers_are_read() {
        let older = Line::parse("[22:21:32.099][25642][CUDA][E][cuLaunchKernel] gridDimY is 65536");
        let message = "gridDimY is 65536";
        let thread = Some("25642");
        assert_eq!(older, Line { thread, call: Some("cuLaunchKernel"), message });
        let newer = Line::parse("[22:21:32.099][25642][CUDA][E] gridDimY is 65536");
        assert_eq!(newer, Line { thread, call: None, message });
        let bare = Line::parse("some messages were dropped");
        assert_eq!(bare, Line { message: "some messages were dropped", ..Line::default() });
    }

    #[test]
    fn lines_about_the_call_come_first_and_the_code_is_not_repeated() {
        let lines = [
            "[1][2][CUDA][E][cuFuncGetParamInfo] no such parameter",
            "[1][2][CUDA][E][cuLaunchKernel] gridDimY is 65536",
        ];
        assert_eq!(text(lines.into_iter(), "cuLaunchKernel"), "gridDimY is 65536");
        let newer = [
            "[1][2][CUDA][E] gridDimY is 65536",
            "[1][2][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunchKernel",
        ];
        assert_eq!(text(newer.into_iter(), "cuLaunchKernel"), "gridDimY is 65536");
    }
}
