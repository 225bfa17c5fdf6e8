//! `gridguard explain`: what a CUDA failure means, where it comes from, and what to do.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::Path;

use clap::Args;
use gridguard::cuda;
use gridguard::diagnose::{CudaVersion, Diagnosis, Evidence, Finding, Log, Subject, diagnose};
use serde::Serialize;

use crate::device::DeviceChoice;
use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, note};

#[derive(Args)]
pub(crate) struct Explain {
    /// A message, a name or a number; - or nothing for a log on standard input
    #[arg(value_name = "TEXT", allow_negative_numbers = true)]
    text: Vec<String>,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    /// Lines that were read.
    lines: u64,
    /// Lines that tell of more failures than are kept apart.
    dropped: u64,
    /// The failures, the first one first.
    findings: Vec<Record>,
}

#[derive(Serialize)]
struct Record {
    line: u64,
    text: String,
    times: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    consequence_of: Option<Subject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    diagnosis: Diagnosis,
}

const NOTHING: &str = "\
nothing that CUDA says was recognised; what is looked for:
  700                                              a number of CUDA
  CUDA_ERROR_INVALID_VALUE, cudaErrorInvalidValue  a name, also CUBLAS_STATUS_ALLOC_FAILED and the like
  CUDA error: invalid configuration argument       the words of a message
  gridguard explain < training.log                 a log with such lines";

impl Explain {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let text = self.text.join(" ");
        let is_blank = text.trim().is_empty() && !self.text.is_empty();
        let log = if is_blank { None } else { log_of(text.trim())? };
        let Some(mut log) = log else {
            note("error: nothing to explain: give a message, a name or a number, or pipe a log in");
            return Ok(Exit::InvalidInput);
        };
        if log.findings().is_empty() {
            match Subject::similar(&text).as_slice() {
                [one] => {
                    note(format_args!("{:?} is taken for {one}", text.trim()));
                    log = Log::asked();
                    log.line(one.failure().name);
                }
                several => note(nothing(text.trim(), several)),
            }
        }
        let machine = self.machine()?;
        let findings = log.findings().into_iter().map(|it| Record::new(it, &machine));
        let (lines, dropped) = (log.lines(), log.dropped());
        let report = Report { lines, dropped, findings: findings.collect() };
        self.output.print(&report, fmt::from_fn(|f| f.write_str(&report.to_text())))?;
        Ok(if report.findings.is_empty() { Exit::No } else { Exit::Yes })
    }

    /// What is known of the device that was named; of one of this machine also what drives it.
    fn machine(&self) -> Result<Evidence, CommandError> {
        let device = self.device.limits()?;
        if self.device.device.is_none() {
            return Ok(Evidence { device, ..Evidence::default() });
        }
        let driver_cuda = cuda::driver_version().ok().map(CudaVersion);
        let visible_devices = cuda::device_count().ok();
        Ok(Evidence { device, driver_cuda, visible_devices, ..Evidence::default() })
    }
}

/// What is to be explained: `text`, or a log on standard input; `None` where there is neither.
fn log_of(text: &str) -> Result<Option<Log>, CommandError> {
    if !text.is_empty() && text != "-" {
        // One line is a question; several were copied from somewhere.
        let mut log = if text.contains('\n') { Log::new() } else { Log::asked() };
        log.read(text.as_bytes()).map_err(CommandError::io("reading the text"))?;
        return Ok(Some(log));
    }
    let input = io::stdin().lock();
    if text.is_empty() && input.is_terminal() {
        return Ok(None);
    }
    let mut log = Log::new();
    log.read(input).map_err(CommandError::io("standard input"))?;
    Ok(Some(log))
}

/// What to say where nothing was recognised.
fn nothing(text: &str, similar: &[Subject]) -> String {
    if ["0", "CUDA_SUCCESS", "cudaSuccess"].contains(&text) {
        return format!("{text} is success: nothing failed");
    }
    if Path::new(text).is_file() {
        return format!("{text} is a file: gridguard explain < {text}");
    }
    if similar.is_empty() {
        return NOTHING.to_owned();
    }
    let names: Vec<String> = similar.iter().map(|subject| format!("\n  {subject}")).collect();
    format!("{text:?} may be several; explain one of{}", names.concat())
}

impl Record {
    fn new(finding: Finding, machine: &Evidence) -> Self {
        let Finding { subject, line, text, times, evidence, consequence_of, note, .. } = finding;
        let evidence = Evidence {
            device: machine.device.clone(),
            driver_cuda: evidence.driver_cuda.or(machine.driver_cuda),
            visible_devices: evidence.visible_devices.or(machine.visible_devices),
            ..evidence
        };
        let diagnosis = diagnose(&subject, &evidence);
        Self { line, text, times, consequence_of, note, diagnosis }
    }
}

impl Report {
    fn to_text(&self) -> String {
        let told: Vec<String> = self.findings.iter().map(|one| one.to_text(self.lines)).collect();
        let mut text = told.join("\n");
        if self.dropped > 0 {
            text.push_str(&format!("\n{} more lines tell of further failures\n", self.dropped));
        }
        text
    }
}

impl Record {
    /// What follows from another failure is not explained at length: the other one is to be mended.
    fn to_text(&self, lines: u64) -> String {
        let Self { line, text, times, consequence_of, note, diagnosis } = self;
        let place = match times {
            _ if lines == 1 => String::new(),
            1 => format!("line {line}: {text}\n"),
            times => format!("line {line}, told {times} times: {text}\n"),
        };
        if let Some(first) = consequence_of {
            let subject = diagnosis.subject;
            return format!(
                "{place}{subject}\n  probably a consequence of {first}: mend that first\n"
            );
        }
        let note = note.as_ref().map(|note| format!("{note}\n")).unwrap_or_default();
        format!("{place}{note}{diagnosis}\n")
    }
}
