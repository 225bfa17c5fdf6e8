//! `gridguard profile show`: prints the device and the entries of a profile.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, ParsedProfile, built_in_profile,
};
use gridguard::{catalog, count};
use serde_json::json;

use super::entry::{self, FaultJson};
use crate::error::{CommandError, Exit};
use crate::measure::args::KernelFilter;
use crate::output::{OutputArgs, counted, known, text};

#[derive(Args)]
pub(crate) struct Show {
    /// Profile, or GPU of the catalogue whose built-in profile is shown, for example h200
    file: PathBuf,
    #[command(flatten)]
    kernels: KernelFilter,
    #[command(flatten)]
    output: OutputArgs,
}

impl Show {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let ParsedProfile { document, faults } = self.read()?;
        let is_wanted = |entry: &&Entry| self.kernels.matches(&entry.key.kernel);
        let entries: Vec<&Entry> = document.entries().iter().filter(is_wanted).collect();
        let report = json!({
            "file": self.file.display().to_string(),
            "device": document.device(),
            "aliases": document.aliases(),
            "environment": document.environment(),
            "faults": FaultJson::all(&self.file, &faults),
            "entries": entries,
        });
        let shown = text(|f| {
            write_head(f, &document)?;
            if entries.len() < document.entries().len() {
                write!(f, "{} of ", entries.len())?;
            }
            let invalid = counted(&[(faults.len(), "invalid skipped")]);
            writeln!(f, "{}{invalid}", count(document.entries().len(), "entry"))?;
            if entries.is_empty() {
                return Ok(());
            }
            let rows = entries.iter().map(|entry| (*entry, cells(entry)));
            write!(f, "\n{}", entry::table(COLUMNS, rows))
        });
        self.output.print(&report, shown)?;
        Ok(Exit::Yes)
    }
}

impl Show {
    /// The file, or the built-in profile of this name.
    fn read(&self) -> Result<ParsedProfile, CommandError> {
        let name = self.file.to_str().filter(|_| !self.file.exists());
        let Some(limits) = name.and_then(|name| catalog::limits(name).ok()) else {
            return entry::read(&self.file);
        };
        let text = built_in_profile(&DeviceIdentity::new(&limits)).ok_or_else(|| {
            let message =
                format!("there is no built-in profile of {}, and no such file", limits.name);
            CommandError::invalid_file(&self.file, message)
        })?;
        Document::parse(text).map_err(CommandError::in_file(&self.file))
    }
}

/// The device, and the versions that the entries were measured with.
fn write_head(f: &mut fmt::Formatter<'_>, document: &Document) -> fmt::Result {
    let device @ DeviceIdentity { memory_bytes, l2_bytes, processor, .. } = document.device();
    writeln!(f, "{device}\nmemory {memory_bytes} bytes, L2 cache {l2_bytes} bytes")?;
    if let Some(processor) = processor {
        writeln!(f, "processor {processor}")?;
    }
    if !document.aliases().is_empty() {
        writeln!(f, "aliases {}", document.aliases().join(", "))?;
    }
    let Environment { driver, compiler, tuner } = document.environment();
    match known(&[("driver", driver), ("compiler", compiler), ("tuner", tuner)]) {
        none if none.is_empty() => Ok(()),
        some => writeln!(f, "measured with {some}"),
    }
}

fn cells(entry: &Entry) -> [String; COLUMNS.len()] {
    let Entry { choice, parameters, launches, chosen, default, found, .. } = entry;
    let change = entry::change(default.median_ns, chosen.median_ns);
    [
        if entry.is_confirmed() { "confirmed".into() } else { entry::choice(*choice) },
        entry::parameters(parameters),
        if *launches == 0 { String::new() } else { launches.to_string() },
        entry::time(chosen.median_ns).unwrap_or_default(),
        change.map(entry::percent).unwrap_or_default(),
        chosen.samples.to_string(),
        found.date.clone(),
    ]
}

const COLUMNS: [&str; 7] =
    ["choice", "parameters", ">launches", ">median", ">vs default", ">samples", "date"];
