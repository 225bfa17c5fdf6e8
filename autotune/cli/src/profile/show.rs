//! `gridguard profile show`: prints the device and the entries of a profile.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use gridguard::profile::{DeviceIdentity, Entry, Environment, ParsedProfile};
use serde::Serialize;

use super::entry::{self, FaultJson};
use crate::error::{CommandError, Exit};
use crate::measure::args::KernelFilter;
use crate::output::OutputArgs;

#[derive(Args)]
pub(crate) struct Show {
    /// Profile
    file: PathBuf,
    #[command(flatten)]
    kernels: KernelFilter,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct ShowReport<'a> {
    file: String,
    device: &'a DeviceIdentity,
    aliases: &'a [String],
    environment: &'a Environment,
    faults: Vec<FaultJson>,
    entries: Vec<&'a Entry>,
    #[serde(skip)]
    all: usize,
}

impl Show {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let ParsedProfile { document, faults } = entry::read(&self.file)?;
        let is_wanted = |entry: &&Entry| self.kernels.matches(&entry.key.kernel);
        let report = ShowReport {
            file: self.file.display().to_string(),
            device: document.device(),
            aliases: document.aliases(),
            environment: document.environment(),
            faults: FaultJson::all(&self.file, faults).collect(),
            entries: document.entries().iter().filter(is_wanted).collect(),
            all: document.entries().len(),
        };
        self.output.print(&report, &report)?;
        Ok(Exit::Yes)
    }
}

impl fmt::Display for ShowReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceIdentity { memory_bytes, l2_bytes, processor, .. } = self.device;
        writeln!(
            f,
            "{}, {memory_bytes} bytes of memory, {l2_bytes} bytes of L2 cache",
            self.device
        )?;
        if let Some(processor) = processor {
            writeln!(f, "processor {processor}")?;
        }
        if !self.aliases.is_empty() {
            writeln!(f, "aliases {}", self.aliases.join(", "))?;
        }
        let Environment { driver, compiler, tuner } = self.environment;
        let known = [("driver", driver), ("compiler", compiler), ("tuner", tuner)];
        let known = known.iter().filter(|(_, version)| !version.is_empty());
        let known: Vec<String> = known.map(|(what, version)| format!("{what} {version}")).collect();
        if !known.is_empty() {
            writeln!(f, "measured with {}", known.join(", "))?;
        }
        if self.entries.len() < self.all {
            write!(f, "{} of ", self.entries.len())?;
        }
        write!(f, "{}", entry::entries(self.all))?;
        match self.faults.len() {
            0 => writeln!(f)?,
            invalid => writeln!(f, ", {invalid} invalid skipped")?,
        }
        if self.entries.is_empty() {
            return Ok(());
        }
        let rows = self.entries.iter().map(|entry| (*entry, cells(entry)));
        write!(f, "\n{}", entry::table(COLUMNS, rows))
    }
}

fn cells(entry: &Entry) -> [String; COLUMNS.len()] {
    let Entry { choice, parameters, launches, chosen, default, found, .. } = entry;
    let change = entry::change(default.median_ns, chosen.median_ns);
    [
        entry::choice(*choice),
        entry::parameters(parameters),
        launches.to_string(),
        entry::time(chosen.median_ns).unwrap_or_default(),
        change.map(entry::percent).unwrap_or_default(),
        chosen.samples.to_string(),
        found.date.clone(),
    ]
}

const COLUMNS: [&str; 7] =
    ["choice", "parameters", ">launches", ">median", ">vs default", ">samples", "date"];
