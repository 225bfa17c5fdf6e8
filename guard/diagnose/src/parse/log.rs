//! Scans a log line by line, in bounded memory.

use std::borrow::Cow;
use std::io::{self, BufRead};

use super::driver_log::{DriverLine, KEPT, is_about_sizes};
use super::input::shortened;
use super::recognize::{Context, Recognized, is_device_assertion, recognize};
use super::traceback::{LASTING_LINES, Traceback};
use super::{facts, input, remarks};
use crate::codes::by_former_number;
use crate::evidence::Evidence;
use crate::failure::Origin;
use crate::failure_id::FailureId;
use crate::remarks::Remarks;

/// The most different failures that a scanner keeps. The first failures matter.
pub const MAX_FINDINGS: usize = 64;

/// Bytes of a line that a finding keeps.
const SHOWN_BYTES: usize = 400;

/// Collects the failures that a log reports.
///
/// ```
/// use gridguard_diagnose::LogScanner;
///
/// let mut log = LogScanner::new();
/// log.read("loading\nCUDA error: out of memory\nbye\n".as_bytes())?;
/// assert_eq!((log.findings()[0].line, log.lines()), (2, 3));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LogScanner {
    context: Context,
    lines: u64,
    findings: Vec<LogFinding>,
    dropped: u64,
    /// Facts about the device in the whole log.
    device: Evidence,
    /// The facts in the lines before the next failure, and the last such line.
    near: Remarks,
    last_near: u64,
    /// The finding whose report of compute-sanitizer is being read.
    report: Option<usize>,
    /// Whether the log names devices of several compute capabilities.
    has_several: bool,
    /// Whether the program runs on ROCm, whose failures ggml reports as failures of CUDA.
    is_on_rocm: bool,
    traceback: Traceback,
    /// Lines of the driver's log about the next failure.
    driver_log: Vec<String>,
}

/// A failure that a log reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogFinding {
    /// The failure.
    pub failure: FailureId,
    /// The first line that reports it, counted from 1.
    pub line: u64,
    /// That line's text, truncated to 400 bytes.
    pub text: String,
    /// The number of lines that report it.
    pub times: u64,
    /// Other facts in these lines.
    pub evidence: Evidence,
    /// An earlier failure that probably caused it, for example a failure that loses the context, or a failure of
    /// another rank.
    pub consequence_of: Option<FailureId>,
    /// A remark on the number that identified it, where CUDA 10.1 changed that number's meaning.
    pub note: Option<String>,
    last_line: u64,
}

impl LogScanner {
    /// A scanner for logs, whose lines are mostly unrelated to failures.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A scanner for text from a question. Bare numbers count, and words that other programs also use.
    #[must_use]
    pub fn for_question() -> Self {
        Self { context: Context::Question, ..Self::default() }
    }

    /// Scans the next line.
    pub fn line(&mut self, line: &str) {
        self.piece(line, true);
    }

    /// Scans all lines of `input`, in UTF-8, or in UTF-16 that begins with a byte order mark;
    /// invalid bytes are replaced.
    ///
    /// # Errors
    ///
    /// The error of reading `input`; the lines before it are scanned.
    pub fn read(&mut self, input: impl BufRead) -> io::Result<()> {
        input::read(input, |piece, ends_line| self.piece(piece, ends_line))
    }

    /// The number of lines scanned so far.
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// The number of failures found so far.
    pub const fn count(&self) -> usize {
        self.findings.len()
    }

    /// The number of lines that report failures beyond [`MAX_FINDINGS`].
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The failures, each once, in the order of their first lines. Fix the first failure.
    pub fn findings(&self) -> Vec<LogFinding> {
        let mut findings = self.findings.clone();
        if let Some(LogFinding { evidence, .. }) = findings.last_mut() {
            // A traceback may follow its message.
            self.traceback.clone().give(evidence);
            add(&mut evidence.driver_log, &self.driver_log);
        }
        for LogFinding { evidence, .. } in &mut findings {
            let of_device = self.device.capability.filter(|_| !self.has_several);
            evidence.capability = evidence.capability.or(of_device);
            evidence.driver_cuda = evidence.driver_cuda.or(self.device.driver_cuda);
            evidence.remarks.add(&self.device.remarks);
            if evidence.architectures.is_empty() {
                evidence.architectures.clone_from(&self.device.architectures);
            }
        }
        findings
    }

    fn piece(&mut self, piece: &str, ends_line: bool) {
        let number = self.lines.saturating_add(1);
        let is_plain = !piece.contains(|c: char| c.is_control());
        let text = if is_plain { Cow::from(piece) } else { input::plain(piece).into() };
        self.scan(text.trim(), number);
        if ends_line {
            self.lines = number;
        }
    }

    fn scan(&mut self, text: &str, number: u64) {
        let recognized = match DriverLine::parse(text) {
            Some(DriverLine::Expected) => return self.driver_log.clear(),
            Some(DriverLine::Message(message)) => {
                if self.driver_log.len() == KEPT {
                    self.driver_log.remove(0);
                }
                self.driver_log.push(shortened(message, SHOWN_BYTES));
                let invalid = FailureId::from_code(INVALID_VALUE).into();
                is_about_sizes(message).then_some(invalid)
            }
            Some(DriverLine::Result) | None => recognize(text, self.context),
        };
        if recognized.is_some()
            || text.contains("CUDA capabilities")
            || text.contains(facts::CAPABILITY)
        {
            let mut device = Evidence::default();
            facts::read(text, &mut device);
            let known = self.device.capability.zip(device.capability);
            self.has_several |= known.is_some_and(|(known, other)| known != other);
            facts::read(text, &mut self.device);
        }
        self.is_on_rocm |= text.contains("ROCm") && ON_ROCM.iter().any(|it| text.contains(it));
        self.remark(text, number);
        let Some(recognized) = recognized else {
            self.scan_below(text, number);
            return;
        };
        let recognized = if self.is_on_rocm { recognized.on_rocm() } else { recognized };
        let evidence = self.traceback.failure(text, number);
        let driver_log = core::mem::take(&mut self.driver_log);
        let near = core::mem::take(&mut self.near);
        let Some(finding) = self.finding(recognized, text, number) else {
            return;
        };
        finding.evidence.remarks.add(&near);
        let access = remarks::access(text);
        let is_new = access.is_some() && finding.evidence.remarks.access.is_none();
        if is_new {
            finding.evidence.remarks.access = access;
        }
        // The failure may have been reported before its traceback.
        let known = &mut finding.evidence.clues;
        if known.iter().all(|it| it.row.is_minor()) {
            for clue in evidence.clues {
                if !known.iter().any(|it| it.row == clue.row) {
                    known.push(clue);
                }
            }
        }
        let known = finding.evidence.launch_sizes;
        finding.evidence.launch_sizes = known.or(evidence.launch_sizes);
        finding.evidence.program = finding.evidence.program.take().or(evidence.program);
        finding.evidence.kernel = finding.evidence.kernel.take().or(evidence.kernel);
        add(&mut finding.evidence.driver_log, &driver_log);
        if finding.last_line != number {
            finding.last_line = number;
            finding.times = finding.times.saturating_add(1);
        }
        facts::read(text, &mut finding.evidence);
        if finding.evidence.assertion.is_none() && is_device_assertion(&text.to_ascii_lowercase()) {
            let assertion = shortened(text.trim_end_matches('.'), SHOWN_BYTES);
            finding.evidence.assertion = Some(assertion);
        }
        let failure = finding.failure;
        let place = self.findings.iter().position(|it| is_new && it.failure == failure);
        self.report = place;
    }

    /// XLA prints the free memory in the line below the failure, and other programs a backtrace.
    fn scan_below(&mut self, text: &str, number: u64) {
        let continues = self.traceback.continues(text, number);
        self.traceback.line(text, number);
        if let Some(finding) = self.findings.last_mut().filter(|_| continues) {
            self.traceback.give(&mut finding.evidence);
        }
        self.scan_report(text);
        let above = number.saturating_sub(1);
        let finding = self.findings.iter_mut().find(|finding| finding.last_line == above);
        if let Some(finding) = finding.filter(|_| text.contains(" bytes free, ")) {
            facts::read(text, &mut finding.evidence);
        }
    }

    /// Keeps remarks of a line about the machine, and about a failure nearby.
    fn remark(&mut self, text: &str, number: u64) {
        let mut found = Remarks::default();
        remarks::read(text, &mut found);
        if number.saturating_sub(self.last_near) > LASTING_LINES {
            self.near = Remarks::default();
        }
        if found == Remarks::default() {
            return;
        }
        self.device.remarks.add(&found.of_machine());
        let last = self.findings.last_mut();
        if let Some(last) = last.filter(|it| number.saturating_sub(it.last_line) <= BELOW) {
            last.evidence.remarks.add(&found);
        }
        self.near.add(&found);
        self.last_near = number;
    }

    /// Reads a further line of a report of compute-sanitizer.
    fn scan_report(&mut self, text: &str) {
        if !remarks::is_report(text) {
            return;
        }
        let misaligned = FailureId::from_code(MISALIGNED);
        let is_known = self.findings.iter().any(|it| it.failure == misaligned);
        let Some(finding) = self.report.and_then(|place| self.findings.get_mut(place)) else {
            let kernel = || remarks::kernel(text.trim_start_matches(['=', ' ']));
            let last = self.findings.last_mut();
            if let Some(last) = last.filter(|it| it.failure.entry().origin == Origin::Sanitizer) {
                last.evidence.kernel = last.evidence.kernel.take().or_else(kernel);
            }
            return;
        };
        let Some(access) = &mut finding.evidence.remarks.access else { return };
        let is_open = remarks::read_access(text, access);
        if access.is_misaligned && !is_known {
            finding.failure = misaligned;
        }
        finding.evidence.kernel = finding.evidence.kernel.take().or_else(|| access.kernel.clone());
        self.report = self.report.filter(|_| is_open);
    }

    /// The finding of this failure, added if it is new. `None` beyond [`MAX_FINDINGS`].
    fn finding(&mut self, found: Recognized, text: &str, line: u64) -> Option<&mut LogFinding> {
        let Recognized { failure, number } = found;
        let known = self.findings.iter().position(|finding| finding.failure == failure);
        if known.is_none() && self.findings.len() < MAX_FINDINGS {
            self.findings.push(LogFinding {
                failure,
                line,
                text: shortened(text, SHOWN_BYTES),
                times: 0,
                evidence: Evidence::default(),
                consequence_of: cause_of(&failure, &self.findings),
                note: number.and_then(|number| note(&failure, number)),
                last_line: 0,
            });
            return self.findings.last_mut();
        }
        self.dropped = self.dropped.saturating_add(u64::from(known.is_none()));
        self.findings.get_mut(known?)
    }
}

/// The earlier failure that probably caused `failure`.
fn cause_of(failure: &FailureId, earlier: &[LogFinding]) -> Option<FailureId> {
    let entry = failure.entry();
    let mut earlier = earlier.iter().map(|finding| finding.failure);
    if !(entry.wraps || entry.follows) {
        return None;
    }
    match entry.origin {
        // Ranks wait for each other, so a failure of one ends all of them.
        Origin::Nccl => earlier.find(|it| it.entry().origin != Origin::Nccl),
        _ => earlier.find(|it| it.entry().sticky),
    }
}

/// A remark on `number` if CUDA 10.1 changed its meaning.
fn note(failure: &FailureId, number: i32) -> Option<String> {
    let former = FailureId::from(by_former_number(number)?);
    Some(if former == *failure {
        format!("{number} is the number of this failure in the runtime before CUDA 10.1")
    } else {
        format!("the runtime before CUDA 10.1 returns {number} for {former}")
    })
}

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: i32 = 1;

/// The most lines between a remark and a failure above it.
const BELOW: u64 = 16;

/// `CUDA_ERROR_MISALIGNED_ADDRESS`.
const MISALIGNED: i32 = 716;

/// How ggml states that it found devices of ROCm, and uses them.
const ON_ROCM: [&str; 3] = [" ROCm devices", "ROCm0", "ROCm_Host"];

/// Adds new lines to `lines`, up to [`KEPT`] lines.
fn add(lines: &mut Vec<String>, more: &[String]) {
    for line in more {
        if lines.len() < KEPT && !lines.contains(line) {
            lines.push(line.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read, repeat};

    use super::super::work::counted;
    use super::*;
    use crate::codes::known_failures;

    const TRIGGERS: [&str; 25] = [
        "nccl ",
        "cuda error ",
        "gpu free 1 gib ",
        "libcu ",
        "] call to cu",
        "1 gib is free ",
        "grid (1,2,3) block (1,2,3) ",
        "<<<",
        "grid",
        "block",
        "gridblock_nums",
        "File \"xformers ",
        "0: argsort ",
        ".rs: .to( ",
        "[CUDA][E] grid dimension y of 65536 exceeds maximum value of 1 ",
        "Returning 1 from ",
        ".cu",
        "a.cu:1 ",
        "f<<<a, b>>> ",
        "/mnt/wsl ",
        "image 0x0 ",
        "tesla k80 out of resource: shared needs 0x1 limit 0 ",
        "assertion `",
        "NVRM: Xid (",
        "supports cuda capabilities sm_80 ",
    ];

    fn work(text: &str) -> usize {
        let question = || LogScanner::for_question().line(text);
        counted(|| LogScanner::new().line(text)) + counted(question)
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn twice_the_line_is_twice_the_work() {
        let messages = known_failures().flat_map(|entry| entry.messages().iter().copied());
        for message in messages.chain(TRIGGERS) {
            for unit in [format!("{message} "), message.trim().to_owned()] {
                let [once, twice] = [40, 80].map(|times| work(&unit.repeat(times)));
                assert!(twice <= 2 * once + 100, "{unit:?}: {once}, then {twice}");
                let bytes = 80 * unit.len();
                assert!(twice <= 50 * bytes, "{unit:?}: {twice} for {bytes} bytes");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn a_long_log_is_scanned_once_and_hardly_any_of_it_is_kept() {
        let kept = |log: &LogScanner| {
            let evidence = |it: &LogFinding| format!("{it:?}").len();
            log.findings().iter().map(evidence).sum::<usize>() + format!("{log:?}").len()
        };
        let mut sizes = Vec::new();
        for mib in [1_u64, 2] {
            let mut log = LogScanner::new();
            let line = "File \"a.py\", line 1, in argsort grid (1,2,3) CUDA error: out of memory ";
            let lines = format!("{line}\n").repeat(8192);
            let endless = repeat(b'x').take(mib << 20);
            let input = BufReader::new(lines.as_bytes().chain(endless));
            let scanned = counted(|| log.read(input).expect("memory can be read"));
            assert!(scanned <= 20 * (lines.len() + (2 << 20)), "{scanned}");
            sizes.push((scanned, kept(&log)));
        }
        assert!(sizes[1].0 <= 2 * sizes[0].0 && sizes[0].1 == sizes[1].1, "{sizes:?}");
        assert!(sizes[1].1 < 10_000, "{sizes:?}");
    }
}
