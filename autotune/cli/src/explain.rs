//! `gridguard explain`: what a CUDA error code, a message or a whole log means, and how to fix it.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::Path;

use clap::Args;
use gridguard::diagnose::{
    CudaVersion, Diagnosis, Evidence, FailureId, LogFinding, LogScanner, diagnose, similar_failures,
};
use gridguard::{DeviceLimits, cuda};
use serde::Serialize;

use crate::device::DeviceChoice;
use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, note};
use crate::stated_launch;

#[derive(Args)]
pub(crate) struct Explain {
    /// A message, a name or an error code; `-` or nothing reads a log from standard input
    #[arg(value_name = "TEXT", allow_negative_numbers = true)]
    text: Vec<String>,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    output: OutputArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct ExplainReport {
    /// Lines read.
    lines: u64,
    /// Lines that report failures beyond those in `findings`.
    dropped: u64,
    /// The failures, in the order of their first lines.
    findings: Vec<ExplainedFailure>,
}

#[derive(Serialize)]
struct ExplainedFailure {
    line: u64,
    text: String,
    times: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    consequence_of: Option<FailureId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    diagnosis: Diagnosis,
}

const NOTHING_GIVEN: &str =
    "nothing to explain: give a message, a name or a number, or pipe a log in";
const NOTHING_RECOGNIZED: &str = "\
no CUDA failure recognized; give one of these:
  700                                              an error code
  CUDA_ERROR_INVALID_VALUE, cudaErrorInvalidValue  a name, also of libraries, such as CUBLAS_STATUS_ALLOC_FAILED
  CUDA error: invalid configuration argument       a message
  gridguard explain < training.log                 a log";

impl Explain {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let text = self.text.join(" ");
        let text = text.trim();
        if text.is_empty() && (!self.text.is_empty() || io::stdin().is_terminal()) {
            return Err(CommandError::Invalid(NOTHING_GIVEN.into()));
        }
        let mut log = scan(text)?;
        if log.findings().is_empty() {
            match similar_failures(text).as_slice() {
                [one] => {
                    note(format_args!("assuming that {text:?} means {one}"));
                    log = LogScanner::for_question();
                    log.line(one.entry().name);
                }
                several => note(unrecognized(text, several)),
            }
        }
        let device = self.device.limits()?;
        let machine = self.machine(device.as_deref());
        let findings = log.findings().into_iter();
        let findings = findings.map(|it| ExplainedFailure::new(it, &machine, device.as_deref()));
        let findings = findings.collect::<Result<_, _>>()?;
        let report = ExplainReport { lines: log.lines(), dropped: log.dropped(), findings };
        self.output.print(&report, &report)?;
        Ok(if report.findings.is_empty() { Exit::No } else { Exit::Yes })
    }

    /// What is known about the chosen device; for a device of this machine, about its driver too.
    fn machine(&self, device: Option<&DeviceLimits>) -> Evidence {
        let evidence = device.map(Evidence::from).unwrap_or_default();
        if self.device.device.is_none() {
            return evidence;
        }
        let driver_cuda = cuda::driver_version().ok().map(CudaVersion);
        let visible_devices = cuda::device_count().ok();
        Evidence { driver_cuda, visible_devices, ..evidence }
    }
}

/// Scans `text`, or a log on standard input where there is none.
fn scan(text: &str) -> Result<LogScanner, CommandError> {
    if ["", "-"].contains(&text) {
        let mut log = LogScanner::new();
        log.read(io::stdin().lock()).map_err(CommandError::io("standard input"))?;
        return Ok(log);
    }
    // One line is a question; several were copied from a log.
    let is_log = text.contains('\n');
    let mut log = if is_log { LogScanner::new() } else { LogScanner::for_question() };
    log.read(text.as_bytes()).map_err(CommandError::io("reading the text"))?;
    Ok(log)
}

/// What to say where no failure was recognized.
fn unrecognized(text: &str, similar: &[FailureId]) -> String {
    if ["0", "CUDA_SUCCESS", "cudaSuccess"].contains(&text) {
        return format!("{text} is success: nothing failed");
    }
    if Path::new(text).is_file() {
        return format!("{text} is a file: gridguard explain < {text}");
    }
    if similar.is_empty() {
        return NOTHING_RECOGNIZED.to_owned();
    }
    let names: Vec<String> = similar.iter().map(|failure| format!("\n  {failure}")).collect();
    format!("{text:?} may mean several failures; explain one of{}", names.concat())
}

impl ExplainedFailure {
    /// What the log says about the device precedes what is known about the chosen one.
    fn new(
        finding: LogFinding,
        machine: &Evidence,
        device: Option<&DeviceLimits>,
    ) -> Result<Self, CommandError> {
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

impl fmt::Display for ExplainReport {
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
