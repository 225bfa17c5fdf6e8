//! A log, line by line, in bounded memory.

use std::io::{self, BufRead};

use super::line::{Context, is_device_assertion, recognise};
use super::numbers;
use crate::diagnose::evidence::Evidence;
use crate::diagnose::failure::Origin;
use crate::diagnose::subject::Subject;

/// Bytes of a line that are read; the rest of a longer one is skipped.
pub const LONGEST_LINE_BYTES: usize = 64 * 1024;

/// Failures that a log keeps apart; a log with more has told the first ones long before.
pub const MOST_FINDINGS: usize = 64;

/// Bytes of a line that are kept to be shown.
const SHOWN_BYTES: usize = 400;

/// Collects the failures of a log.
///
/// ```
/// use gridguard::diagnose::Log;
/// let mut log = Log::new();
/// log.read("loading\nCUDA error: out of memory\nbye\n".as_bytes())?;
/// assert_eq!((log.findings()[0].line, log.lines()), (2, 3));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Log {
    context: Context,
    lines: u64,
    findings: Vec<Finding>,
    /// What the whole log tells of the device.
    device: Evidence,
}

/// A failure in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The failure.
    pub subject: Subject,
    /// Its first line, from 1.
    pub line: u64,
    /// That line's text, cut where it is very long.
    pub text: String,
    /// How many lines tell of it.
    pub times: u64,
    /// What these lines tell beside it.
    pub evidence: Evidence,
    /// An earlier failure that it is probably a consequence of: one that loses the context.
    pub consequence_of: Option<Subject>,
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

impl Log {
    /// A log in which most lines are about something else.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Context::Log)
    }

    /// Text that someone asks about: also a bare number, or words that others use as well, count.
    #[must_use]
    pub fn asked() -> Self {
        Self::with(Context::Asked)
    }

    fn with(context: Context) -> Self {
        Self { context, lines: 0, findings: Vec::new(), device: Evidence::default() }
    }

    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        self.lines = self.lines.saturating_add(1);
        let line = cut(line, LONGEST_LINE_BYTES).trim_end();
        let subject = recognise(line, self.context);
        if subject.is_some() || line.contains("CUDA capabilities") {
            numbers::read(line, &mut self.device);
        }
        let Some(finding) = subject.and_then(|subject| self.finding(subject, line)) else {
            return;
        };
        finding.times = finding.times.saturating_add(1);
        numbers::read(line, &mut finding.evidence);
        if finding.evidence.assertion.is_none() && is_device_assertion(&line.to_ascii_lowercase()) {
            finding.evidence.assertion =
                Some(cut(line, SHOWN_BYTES).trim_start().trim_end_matches('.').to_owned());
        }
    }

    /// The finding of `subject`, new where it is; `None` where there is no room for another.
    fn finding(&mut self, subject: Subject, line: &str) -> Option<&mut Finding> {
        let known = self.findings.iter().position(|finding| finding.subject == subject);
        if known.is_none() && self.findings.len() < MOST_FINDINGS {
            let consequence_of = consequence_of(&self.findings, &subject);
            self.findings.push(Finding {
                subject,
                line: self.lines,
                text: cut(line, SHOWN_BYTES).trim_start().to_owned(),
                times: 0,
                evidence: Evidence::default(),
                consequence_of,
            });
            return self.findings.last_mut();
        }
        self.findings.get_mut(known?)
    }

    /// Takes every line of `input`; bytes that are no text are replaced.
    ///
    /// # Errors
    ///
    /// Whatever reading fails with; what was read until then counts.
    pub fn read(&mut self, mut input: impl BufRead) -> io::Result<()> {
        let mut bytes = Vec::new();
        while read_line(&mut input, &mut bytes)? {
            self.line(&String::from_utf8_lossy(&bytes));
        }
        Ok(())
    }

    /// The lines taken so far.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// The failures, each once, in the order in which they were first told: the first is the one to
    /// look at.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = self.findings.clone();
        for Finding { evidence, .. } in &mut findings {
            evidence.capability = evidence.capability.or(self.device.capability);
            evidence.driver_cuda = evidence.driver_cuda.or(self.device.driver_cuda);
            if evidence.architectures.is_empty() {
                evidence.architectures.clone_from(&self.device.architectures);
            }
        }
        findings
    }
}

/// A sticky failure before `subject` is what later calls of CUDA and its libraries tell of.
fn consequence_of(earlier: &[Finding], subject: &Subject) -> Option<Subject> {
    if matches!(subject.failure().origin, Origin::Xid | Origin::Loader | Origin::Vllm) {
        return None;
    }
    earlier.iter().map(|finding| finding.subject).find(|subject| subject.failure().sticky)
}

/// The beginning of `text`, of at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

/// Reads a line without its end into `bytes`, and skips what is beyond the longest; false at the
/// end.
fn read_line(input: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<bool> {
    bytes.clear();
    let mut any = false;
    loop {
        let buffer = match input.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if buffer.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let line = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or_default();
        let room = LONGEST_LINE_BYTES.saturating_sub(bytes.len());
        bytes.extend(line.iter().take(room));
        let used = line.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn findings(text: &str) -> Vec<Finding> {
        let mut log = Log::new();
        log.read(text.as_bytes()).expect("memory can be read");
        log.findings()
    }

    #[test]
    fn the_first_failure_comes_first_and_later_ones_are_its_consequences() {
        let found = findings(
            "step 1 ok\n\
             RuntimeError: CUDA error: an illegal memory access was encountered\n\
             RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm\n\
             RuntimeError: CUDA error: an illegal memory access was encountered\n\
             ncclUnhandledCudaError: Call to CUDA function failed.\n",
        );
        let told: Vec<_> =
            found.iter().map(|it| (it.subject.failure().name, it.line, it.times)).collect();
        assert_eq!(
            told,
            [
                ("CUDA_ERROR_ILLEGAL_ADDRESS", 2, 2),
                ("CUBLAS_STATUS_EXECUTION_FAILED", 3, 1),
                ("ncclUnhandledCudaError", 5, 1),
            ]
        );
        let first = found[0].subject;
        let after: Vec<_> = found.iter().map(|it| it.consequence_of).collect();
        assert_eq!(after, [None, Some(first), Some(first)]);
    }

    #[test]
    fn a_failure_that_spares_the_context_has_no_consequences() {
        let found = findings("CUDA error: out of memory\nCUDA error: invalid device ordinal\n");
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|finding| finding.consequence_of.is_none()));
    }

    #[test]
    fn the_failed_assertion_is_the_true_name_of_a_device_side_assert() {
        let found = findings(
            "IndexKernel.cu:92: operator(): block: [5,0,0], thread: [64,0,0] Assertion `-sizes[i] \
             <= index && index < sizes[i]` failed.\n\
             RuntimeError: CUDA error: device-side assert triggered\n",
        );
        assert_eq!((found.len(), found[0].times), (1, 2));
        let assertion = found[0].evidence.assertion.as_deref().expect("it was told");
        assert!(assertion.contains("index < sizes[i]"), "{assertion}");
    }

    #[test]
    fn what_the_log_tells_of_the_device_helps_a_failure_lines_later() {
        let found = findings(
            "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current \
             PyTorch installation.\n\
             The current PyTorch install supports CUDA capabilities sm_80 sm_86 sm_90.\n\
             RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
        );
        assert_eq!((found.len(), found[0].times), (1, 2));
        assert_eq!(found[0].evidence.architectures.len(), 3);
        assert!(found[0].evidence.capability.is_some());
    }

    #[test]
    fn a_line_is_cut_where_it_is_too_long_and_the_next_one_is_read() {
        let long = "x".repeat(3 * LONGEST_LINE_BYTES);
        let found = findings(&format!("{long} CUDA error: 700\nCUDA error 2: out of memory"));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].subject.number()), (2, Some(2)));
        let found = findings(&format!("CUDA error: 700 \u{fc}{long}"));
        assert!(found[0].text.len() <= SHOWN_BYTES);
    }

    #[test]
    fn a_log_of_nothing_but_failures_takes_bounded_memory() {
        let lines = (1..10_000).map(|number| format!("NVRM: Xid (PCI:0000:06:00): {number}, x\n"));
        let found = findings(&lines.collect::<String>());
        assert_eq!(found.len(), MOST_FINDINGS);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn garbage_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut log = Log::asked();
            log.read(bytes.as_slice()).expect("memory can be read");
            prop_assert!(log.findings().len() <= MOST_FINDINGS);
        }

        #[test]
        fn shreds_of_messages_are_read_without_a_panic(
            shreds in proptest::collection::vec(
                prop::sample::select(vec![
                    "CUDA", "error", ":", " ", "(", ")", "Xid", "NVRM", "9", "18446744073709551616",
                    "out of memory", "tried to allocate ", "1.", ".5", "GiB", "\u{1f600}", "\n",
                    "total capacity of ", " free", "cuda capability sm_", "supports CUDA capabilities ",
                    "Assertion `", "failed", "thread: [", "gpu ", "found version ", "nccl", "\0",
                ]),
                0..64,
            )
        ) {
            let text = shreds.concat();
            for mut log in [Log::new(), Log::asked()] {
                log.read(text.as_bytes()).expect("memory can be read");
                for finding in log.findings() {
                    let diagnosis = crate::diagnose::diagnose(&finding.subject, &finding.evidence);
                    prop_assert!(!diagnosis.causes.is_empty() || !diagnosis.not.is_empty());
                }
            }
        }
    }
}
