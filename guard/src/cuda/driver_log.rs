//! The driver's own words about a refusal, which it logs since CUDA 12.9.

use core::fmt;
use std::collections::VecDeque;

use parking_lot::Mutex;

use super::driver::Driver;

/// The driver keeps no more than this.
const LOG_BYTES: usize = 25_600;
/// Lines kept for the threads that they are of, as many as the driver keeps.
const KEPT: usize = 100;
/// Lines that an error repeats: one call logs one or two.
const REPEATED: usize = 4;

/// What the driver logged about a call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverLog {
    /// What it says, without time and thread.
    pub text: String,
    /// Whether this may be about a call of another thread: the log is the process's, and nothing
    /// in it is known to be of this thread.
    pub may_be_of_another_thread: bool,
}

impl fmt::Display for DriverLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, may_be_of_another_thread } = self;
        let whose = if *may_be_of_another_thread { ", maybe of another thread" } else { "" };
        write!(f, "the driver's log says{whose}: {text}")
    }
}

/// How far the driver's log has been read, and the lines that no one has asked for yet.
struct Log {
    position: u32,
    waiting: VecDeque<String>,
}

static LOG: Mutex<Log> = Mutex::new(Log { position: 0, waiting: VecDeque::new() });

/// Reads the log from here on.
pub(super) fn begin(driver: &Driver) {
    if let Some(current) = driver.logs_current {
        // SAFETY: the pointer is to a live integer; zero is the only flag.
        unsafe { current(&raw mut LOG.lock().position, 0) };
    }
}

/// A place in the log: what a call says begins there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u32);

impl Mark {
    /// The place where the words of the next call begin, where the driver has a log. For calls that
    /// take their time, not for launches.
    pub(super) fn here(driver: &Driver) -> Option<Self> {
        let mut position = 0;
        let current = driver.logs_current?;
        // SAFETY: the pointer is to a live integer; zero is the only flag.
        let status = unsafe { current(&raw mut position, 0) };
        (status == 0).then_some(Self(position))
    }
}

/// Drops what the driver logged on this thread about a call that was expected to fail.
pub(super) fn drop_own(driver: &Driver) {
    drop(since_last(driver, "", None));
}

/// What the driver has logged on this thread since `mark`, or else since it was last asked, most of
/// all about `call`.
pub(super) fn since_last(driver: &Driver, call: &str, mark: Option<Mark>) -> Option<DriverLog> {
    let mut log = LOG.lock();
    let of_call = mark.and_then(|Mark(mut position)| read(driver, &mut position));
    let fresh = read(driver, &mut log.position)?;
    let own = own_thread();
    let is_own = |line: &str| Line::parse(line).thread.is_some_and(|it| Some(it) == own.as_deref());
    log.waiting.extend(fresh.lines().map(str::to_owned));
    let (ours, others) = log.waiting.drain(..).partition(|line| is_own(line));
    log.waiting = others;
    let surplus = log.waiting.len().saturating_sub(KEPT);
    log.waiting.drain(..surplus);
    let mut ours: VecDeque<String> = ours;
    // Older words of this thread are of calls around the guard.
    let fresh = of_call.unwrap_or(fresh);
    if mark.is_some() {
        ours = fresh.lines().filter(|line| is_own(line)).map(str::to_owned).collect();
    }
    let may_be_of_another_thread = ours.is_empty();
    let text = match may_be_of_another_thread {
        true => text(fresh.lines(), call),
        false => text(ours.iter().map(String::as_str), call),
    };
    (!text.is_empty()).then_some(DriverLog { text, may_be_of_another_thread })
}

/// What was logged since `position`, which moves on.
fn read(driver: &Driver, position: &mut u32) -> Option<String> {
    let dump = driver.logs_dump_to_memory?;
    let mut bytes = vec![0_u8; LOG_BYTES];
    let mut size = bytes.len();
    // SAFETY: the buffer has the size that it is said to have, both pointers are to live integers,
    // and zero is the only flag.
    let status = unsafe { dump(position, bytes.as_mut_ptr().cast(), &raw mut size, 0) };
    let text = bytes.get(..size).filter(|_| status == 0).unwrap_or_default();
    Some(String::from_utf8_lossy(text).trim_matches(['\0', '\n']).to_owned())
}

/// This thread's number, as the system and the driver's log call it.
fn own_thread() -> Option<String> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

/// The last of `lines`, those about `call` where any is.
fn text<'a>(lines: impl Iterator<Item = &'a str>, call: &str) -> String {
    let lines: Vec<_> = lines.map(Line::parse).filter(Line::says_more_than_the_code).collect();
    let about: Vec<_> = lines.iter().filter(|line| line.call == Some(call)).collect();
    let chosen = if about.is_empty() { lines.iter().collect() } else { about };
    let last = chosen.get(chosen.len().saturating_sub(REPEATED)..).unwrap_or_default();
    last.iter().map(|line| line.message).collect::<Vec<_>>().join("; ")
}

/// `[time][thread][source][severity][call] message`; newer drivers leave out the call.
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
