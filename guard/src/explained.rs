//! The failures in a message or a log, each with its diagnosis: what `gridguard explain` writes.
//!
//! ```
//! use gridguard::diagnose::Evidence;
//! use gridguard::explained::{ExplainedLog, scan};
//!
//! let (log, _) = scan("CUDA error: invalid configuration argument");
//! let explained = ExplainedLog::new(&log, &Evidence::default(), None)?;
//! assert_eq!(explained.findings[0].diagnosis.failure.number(), Some(9));
//! # Ok::<(), gridguard::catalog::CatalogError>(())
//! ```

use core::fmt;

use gridguard_diagnose::{
    Diagnosis, Evidence, FailureId, LogFinding, LogScanner, diagnose, similar_failures,
};
use serde::Serialize;

use crate::catalog::gpus::CatalogError;
use crate::limits::DeviceLimits;
use crate::stated_launch;

/// The failures in a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExplainedLog {
    /// Lines read.
    pub lines: u64,
    /// Lines that report failures beyond those in `findings`.
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
    /// How many lines report it.
    pub times: u64,
    /// The earlier failure that probably caused this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consequence_of: Option<FailureId>,
    /// What else the log says about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What it means and what probably caused it.
    pub diagnosis: Diagnosis,
}

/// Scans a message, a name or a number, or a log of several lines. If that reports no failure, but is part
/// of a single one's name or message, that failure is assumed and returned beside the scanner.
#[must_use]
pub fn scan(text: &str) -> (LogScanner, Option<FailureId>) {
    // One line is a question; several were copied from a log.
    let is_log = text.contains('\n');
    let mut log = if is_log { LogScanner::new() } else { LogScanner::for_question() };
    text.lines().for_each(|line| log.line(line));
    if log.findings().is_empty()
        && let [assumed] = *similar_failures(text).as_slice()
    {
        let mut log = LogScanner::for_question();
        log.line(assumed.entry().name);
        return (log, Some(assumed));
    }
    (log, None)
}

impl ExplainedLog {
    /// Explains the failures in `log`. The sizes of a launch that it states are checked against `device`,
    /// against the GPUs of the compute capability that it states, or else against the catalogue.
    /// `machine` is what is known beside the log.
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
    /// What the log says about the device precedes what is known about the chosen one.
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

    /// Writes the diagnosis, or only the failure that caused this one.
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
