//! `gridguard explain`: explains CUDA error codes, messages and logs, and how to fix the failure.

use std::fs;
use std::io::{self, BufReader, IsTerminal};
use std::path::Path;

use clap::Args;
use console::Term;
use gridguard::{DeviceLimits, count, cuda};
use gridguard_diagnose::{CudaVersion, Known, LogScanner, similar_failures};
use gridguard_report::{device_facts, explain_log};

use crate::error::{CommandError, Exit};
use crate::files::open;
use crate::limits::DeviceChoice;
use crate::output::{OutputArgs, columns, note};
use crate::rules;

#[derive(Args)]
pub(crate) struct Explain {
    /// Log file, error message, name or code, or id of a rule; `-` or nothing reads a log from standard input. If a file
    /// has this name, it is read
    #[arg(value_name = "TEXT", allow_negative_numbers = true)]
    text: Vec<String>,
    /// Print all failures in full, not the deciding one alone
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    output: OutputArgs,
}

const NOTHING_GIVEN: &str =
    "nothing to explain: give a message, a name or a number, or pipe a log in";
const NOTHING_RECOGNIZED: &str = "\
no failure recognized; give one of these:
  700                                              an error code
  CUDA_ERROR_INVALID_VALUE, cudaErrorInvalidValue  a name, also of libraries, such as CUBLAS_STATUS_ALLOC_FAILED
  CUDA error: invalid configuration argument       a message
  gridguard explain training.log                   a log, also on standard input";

impl Explain {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let text = self.text.join(" ");
        let text = text.trim();
        if text.is_empty() && (!self.text.is_empty() || io::stdin().is_terminal()) {
            return Err(CommandError::invalid(NOTHING_GIVEN));
        }
        let is_file = text != "-" && fs::metadata(text).is_ok_and(|it| !it.is_dir());
        let log = if is_file {
            scan_file(Path::new(text))?
        } else if let Some(printed) = rules::explain(text, self.output) {
            return printed;
        } else {
            scan(text)?
        };
        let device = self.device.limits()?;
        let machine = self.machine(device.as_deref());
        let diagnosis = explain_log(&log, &machine, device.as_deref())?;
        let columns = columns(&Term::stdout()).unwrap_or(80);
        self.output.print(&diagnosis, diagnosis.text(columns, self.all))?;
        Ok(if diagnosis.failures.is_empty() { Exit::No } else { Exit::Yes })
    }

    /// The facts about the chosen device, with its driver if it is of this machine.
    fn machine(&self, device: Option<&DeviceLimits>) -> Known {
        let mut known = device.map(device_facts).unwrap_or_default();
        if self.device.device.is_none() {
            return known;
        }
        if let Ok(version) = cuda::driver_version() {
            known = known.version("driver_cuda", CudaVersion(version));
        }
        match cuda::device_count().ok().and_then(|count| u64::try_from(count).ok()) {
            Some(count) => known.number("devices", count),
            None => known,
        }
    }
}

fn scan_file(file: &Path) -> Result<LogScanner, CommandError> {
    let mut log = LogScanner::new();
    let name = file.display().to_string();
    log.read(BufReader::new(open(file)?)).map_err(CommandError::io(&name))?;
    if log.count() == 0 {
        let lines = count(log.lines(), "line");
        note(format_args!("no failure recognized in {lines} of {name}"));
    }
    Ok(log)
}

/// Scans `text`, or else a log on standard input, and notes its assumption.
fn scan(text: &str) -> Result<LogScanner, CommandError> {
    let (log, assumed) = if ["", "-"].contains(&text) {
        let mut log = LogScanner::new();
        log.read(io::stdin().lock()).map_err(CommandError::io("standard input"))?;
        (log, None)
    } else {
        gridguard_report::scan(text)
    };
    match assumed {
        Some(one) => note(format_args!("assuming that {text:?} means {one}")),
        None if log.count() == 0 => {
            let similar = similar_failures(text);
            // Otherwise a misspelt path would be a log without a failure.
            if similar.is_empty() && is_path(text) {
                open(Path::new(text))?;
            }
            note(unrecognized(text, &similar));
        }
        None => {}
    }
    Ok(log)
}

/// Whether the text can only be meant as a file: `logs/1`, `training.log`, or the name of a folder.
fn is_path(text: &str) -> bool {
    !text.contains(char::is_whitespace) && (text.contains(['.', '/']) || Path::new(text).exists())
}

/// The note if no failure was recognized.
fn unrecognized(text: &str, similar: &[&str]) -> String {
    if ["0", "CUDA_SUCCESS", "cudaSuccess"].contains(&text) {
        return format!("{text} is success: nothing failed");
    }
    if similar.is_empty() {
        return NOTHING_RECOGNIZED.to_owned();
    }
    let names: Vec<String> = similar.iter().map(|failure| format!("\n  {failure}")).collect();
    format!("{text:?} may mean several failures; explain one of{}", names.concat())
}
