//! The CUDA failures in a message or a log, each with its diagnosis, as `gridguard explain` writes them.
//!
//! ```
//! use gridguard_diagnose::Evidence;
//! use gridguard_report::{ExplainedLog, scan};
//!
//! let (log, _) = scan("CUDA error: invalid configuration argument");
//! let explained = ExplainedLog::new(&log, &Evidence::default(), None)?;
//! assert_eq!(explained.findings[0].diagnosis.failure.number(), Some(9));
//! # Ok::<(), gridguard::catalog::CatalogError>(())
//! ```

use core::fmt;

use gridguard::DeviceLimits;
use gridguard::catalog::CatalogError;
use gridguard_diagnose::{
    Diagnosis, Evidence, FailureId, LogFinding, LogScanner, diagnose, similar_failures,
};
use serde::Serialize;

use crate::stated_launch;

/// The failures in a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExplainedLog {
    /// Lines read.
    pub lines: u64,
    /// Lines with failures that `findings` leaves out.
    pub dropped: u64,
    /// The failures, in the order of their first lines.
    pub findings: Vec<ExplainedFailure>,
}

/// A failure in a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExplainedFailure {
    /// The first line that reports it, from 1.
    pub line: u64,
    /// The line's text.
    pub text: String,
    /// The number of lines that report it.
    pub times: u64,
    /// The earlier failure that probably caused this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consequence_of: Option<FailureId>,
    /// Further information from the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The meaning and the probable causes.
    pub diagnosis: Diagnosis,
}

/// Scans a log of several lines, or a message, a name or a number. If the text reports no failure, but is part of the
/// name or message of exactly one, that failure is assumed, and returned too.
pub fn scan(text: &str) -> (LogScanner, Option<FailureId>) {
    // A single line is a question.
    let is_log = text.contains('\n');
    let mut log = if is_log { LogScanner::new() } else { LogScanner::for_question() };
    text.lines().for_each(|line| log.line(line));
    if log.findings().is_empty()
        && let [assumed] = *similar_failures(text).as_slice()
    {
        let mut log = LogScanner::for_question();
        let entry = assumed.entry();
        // A name of several words is not in any log.
        let is_message = entry.name.contains(' ');
        let message = entry.messages().first().filter(|_| is_message);
        log.line(message.unwrap_or(&entry.name));
        return (log, Some(assumed));
    }
    (log, None)
}

impl ExplainedLog {
    /// Explains the failures in `log`. A launch configuration in the log is checked against `device`, against the
    /// compute capability in the log, or else against the GPUs of the catalogue. `machine` holds facts that are not in
    /// the log.
    ///
    /// # Errors
    ///
    /// [`CatalogError`] if the catalogue does not parse.
    pub fn new(
        log: &LogScanner,
        machine: &Evidence,
        device: Option<&DeviceLimits>,
    ) -> Result<Self, CatalogError> {
        let findings = log.findings().into_iter();
        let findings = findings.map(|finding| ExplainedFailure::new(finding, machine, device));
        let findings = findings.collect::<Result<_, _>>()?;
        Ok(Self { lines: log.lines(), dropped: log.dropped(), findings })
    }
}

impl ExplainedFailure {
    /// Facts in the log precede facts of the chosen device.
    fn new(
        finding: LogFinding,
        machine: &Evidence,
        device: Option<&DeviceLimits>,
    ) -> Result<Self, CatalogError> {
        let LogFinding { failure, line, text, times, evidence, consequence_of, note, .. } = finding;
        let evidence = Evidence {
            device_name: machine.device_name.clone(),
            total_bytes: evidence.total_bytes.or(machine.total_bytes),
            capability: evidence.capability.or(machine.capability),
            driver_cuda: evidence.driver_cuda.or(machine.driver_cuda),
            visible_devices: evidence.visible_devices.or(machine.visible_devices),
            ..evidence
        };
        let evidence = stated_launch::checked(evidence, device)?;
        let diagnosis = diagnose(&failure, &evidence);
        Ok(Self { line, text, times, consequence_of, note, diagnosis })
    }

    /// Writes the diagnosis, or only the cause if that is another failure.
    fn write(&self, f: &mut fmt::Formatter<'_>, lines: u64) -> fmt::Result {
        let Self { line, text, times, consequence_of, note, diagnosis } = self;
        match times {
            _ if lines == 1 => {}
            1 => writeln!(f, "line {line}: {text}")?,
            times => writeln!(f, "line {line}, reported {times} times: {text}")?,
        }
        if let Some(first) = consequence_of {
            writeln!(f, "{}", diagnosis.failure)?;
            return writeln!(f, "  probably a consequence of {first}: fix that first");
        }
        if let Some(note) = note {
            writeln!(f, "{note}")?;
        }
        writeln!(f, "{diagnosis}")
    }
}

impl fmt::Display for ExplainedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, dropped, findings } = self;
        for (place, finding) in findings.iter().enumerate() {
            if place > 0 {
                writeln!(f)?;
            }
            finding.write(f, *lines)?;
        }
        if *dropped > 0 {
            writeln!(f, "\n{dropped} more lines report further failures")?;
        }
        Ok(())
    }
}
