//! `gridguard explain`: what a CUDA failure means, where it comes from, and what to do.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use clap::Args;
use gridguard::DeviceLimits;
use gridguard::diagnose::{Diagnosis, Evidence, Finding, Log, Subject, diagnose};
use serde::Serialize;

use crate::device::DeviceChoice;
use crate::failure::{Answer, Failure};
use crate::format::Format;

#[derive(Args)]
pub(crate) struct Explain {
    /// A message, a name or a number; - or nothing for a log on standard input
    #[arg(value_name = "TEXT")]
    text: Vec<String>,
    #[command(flatten)]
    device: DeviceChoice,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Serialize)]
struct Report {
    /// Lines that were read.
    lines: u64,
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
    diagnosis: Diagnosis,
}

const NOTHING: &str = "nothing that CUDA says was recognised. What is looked for: a number of a \
                       CUresult or cudaError_t (700), a name (CUDA_ERROR_INVALID_VALUE, \
                       cudaErrorInvalidConfiguration, CUBLAS_STATUS_ALLOC_FAILED), the words of a \
                       message (CUDA error: invalid configuration argument), or a log with such \
                       lines";

impl Explain {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let Some(log) = self.log()? else {
            eprintln!(
                "error: nothing to explain: give a message, a name or a number, or pipe a log in"
            );
            return Ok(Answer::Malformed);
        };
        let device = self.device.limits()?;
        let findings = log.findings().into_iter().map(|it| Record::new(it, device.as_ref()));
        let report = Report { lines: log.lines(), findings: findings.collect() };
        if report.findings.is_empty() {
            eprintln!("{NOTHING}");
        }
        self.format.write(&report, |out| write_text(out, &report))?;
        Ok(if report.findings.is_empty() { Answer::No } else { Answer::Yes })
    }

    /// The text to explain, or `None` where there is none.
    fn log(&self) -> Result<Option<Log>, Failure> {
        let text = self.text.join(" ");
        if !text.is_empty() && text != "-" {
            // One line is a question; several were copied from somewhere.
            let mut log = if text.trim().contains('\n') { Log::new() } else { Log::asked() };
            log.read(text.trim().as_bytes()).map_err(Failure::io("reading the text"))?;
            return Ok(Some(log));
        }
        let input = io::stdin().lock();
        if text.is_empty() && input.is_terminal() {
            return Ok(None);
        }
        let mut log = Log::new();
        log.read(input).map_err(Failure::io("standard input"))?;
        Ok(Some(log))
    }
}

impl Record {
    fn new(finding: Finding, device: Option<&Arc<DeviceLimits>>) -> Self {
        let Finding { subject, line, text, times, evidence, consequence_of, .. } = finding;
        let evidence = Evidence { device: device.cloned(), ..evidence };
        let diagnosis = diagnose(&subject, &evidence);
        Self { line, text, times, consequence_of, diagnosis }
    }
}

fn write_text(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let several = report.lines > 1;
    for (place, record) in report.findings.iter().enumerate() {
        if place > 0 {
            writeln!(out)?;
        }
        if several {
            let more = match record.times {
                1 => String::new(),
                times => format!(", told {times} times"),
            };
            writeln!(out, "line {}{more}: {}", record.line, record.text)?;
        }
        if let Some(first) = record.consequence_of {
            writeln!(out, "probably a consequence of {first}: look at that one first")?;
        }
        writeln!(out, "{}", record.diagnosis)?;
    }
    Ok(())
}
