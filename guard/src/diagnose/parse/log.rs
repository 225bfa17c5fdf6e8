//! A log, line by line, in bounded memory.

use std::borrow::Cow;
use std::io::{self, BufRead};

use super::line::{Context, Told, is_device_assertion, recognise};
use super::{input, numbers};
use crate::diagnose::codes::by_former_number;
use crate::diagnose::evidence::Evidence;
use crate::diagnose::failure::Origin;
use crate::diagnose::subject::Subject;

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
    /// Lines that told of further failures.
    dropped: u64,
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
    /// An earlier failure that it is probably a consequence of: one that loses the context, or one
    /// of another rank.
    pub consequence_of: Option<Subject>,
    /// What is to be said of the number that alone stood for it.
    pub note: Option<String>,
    /// The last line that told of it.
    last_line: u64,
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
        let (findings, device) = (Vec::new(), Evidence::default());
        Self { context, lines: 0, findings, dropped: 0, device }
    }

    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        self.piece(line, true);
    }

    /// Takes a piece of the next line.
    fn piece(&mut self, piece: &str, ends_line: bool) {
        let number = self.lines.saturating_add(1);
        let is_plain = !piece.contains(|c: char| c.is_control());
        let text = if is_plain { Cow::from(piece) } else { input::plain(piece).into() };
        self.look(text.trim(), number);
        if ends_line {
            self.lines = number;
        }
    }

    fn look(&mut self, text: &str, number: u64) {
        let told = recognise(text, self.context);
        if told.is_some() || text.contains("CUDA capabilities") {
            numbers::read(text, &mut self.device);
        }
        let Some(told) = told else {
            self.look_below(text, number);
            return;
        };
        let Some(finding) = self.finding(told, text, number) else {
            return;
        };
        if finding.last_line != number {
            finding.last_line = number;
            finding.times = finding.times.saturating_add(1);
        }
        numbers::read(text, &mut finding.evidence);
        if finding.evidence.assertion.is_none() && is_device_assertion(&text.to_ascii_lowercase()) {
            finding.evidence.assertion =
                Some(cut(text, SHOWN_BYTES).trim_end_matches('.').to_owned());
        }
    }

    /// XLA tells of the memory in the line below the failure.
    fn look_below(&mut self, text: &str, number: u64) {
        let above = number.saturating_sub(1);
        let finding = self.findings.iter_mut().find(|finding| finding.last_line == above);
        if let Some(finding) = finding.filter(|_| text.contains(" bytes free, ")) {
            numbers::read(text, &mut finding.evidence);
        }
    }

    /// The finding of what is told, new where it is; `None` where there is no room for another.
    fn finding(&mut self, told: Told, text: &str, line: u64) -> Option<&mut Finding> {
        let Told { subject, number } = told;
        let known = self.findings.iter().position(|finding| finding.subject == subject);
        if known.is_none() && self.findings.len() < MOST_FINDINGS {
            self.findings.push(Finding {
                subject,
                line,
                text: cut(text, SHOWN_BYTES).to_owned(),
                times: 0,
                evidence: Evidence::default(),
                consequence_of: consequence_of(&self.findings, &subject),
                note: number.and_then(|number| note(&subject, number)),
                last_line: 0,
            });
            return self.findings.last_mut();
        }
        self.dropped = self.dropped.saturating_add(u64::from(known.is_none()));
        self.findings.get_mut(known?)
    }

    /// Takes every line of `input`, in UTF-8, or in UTF-16 that begins with its mark; bytes that are
    /// no text are replaced.
    ///
    /// # Errors
    ///
    /// Whatever reading fails with; what was read until then counts.
    pub fn read(&mut self, input: impl BufRead) -> io::Result<()> {
        input::read(input, |piece, ends_line| self.piece(piece, ends_line))
    }

    /// The lines taken so far.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// The lines that told of further failures than were kept apart.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
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

/// The failure before `subject` that brought it about, as far as one can tell.
fn consequence_of(earlier: &[Finding], subject: &Subject) -> Option<Subject> {
    let failure = subject.failure();
    let mut earlier = earlier.iter().map(|finding| finding.subject);
    match failure.origin {
        // Ranks wait for one another, so that whatever ends one ends them all.
        Origin::Nccl if failure.wraps || failure.follows => {
            earlier.find(|it| it.failure().origin != Origin::Nccl)
        }
        _ if failure.wraps || failure.follows => earlier.find(|it| it.failure().sticky),
        _ => None,
    }
}

/// What a number says of itself: that it is one of old, or was another's.
fn note(subject: &Subject, number: i32) -> Option<String> {
    let former = Subject::from(by_former_number(number)?);
    Some(if former == *subject {
        format!("{number} is its number in the runtime before CUDA 10.1")
    } else {
        format!("a runtime before CUDA 10.1 means {former} by {number}")
    })
}

/// The beginning of `text`, of at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

#[cfg(test)]
mod tests;
