//! `gridguard profile show`: what a profile holds.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use gridguard::profile::{DeviceIdentity, Document, Entry, Environment, Parsed};
use serde::Serialize;

use super::record::{EntryRecord, FaultRecord};
use super::table::{Side, Table};
use super::{is_wanted, read, words};
use crate::error::{CommandError, Exit};
use crate::output::OutputArgs;

#[derive(Args)]
pub(crate) struct Show {
    /// The profile
    file: PathBuf,
    /// Only entries of this kernel, or of several
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Record<'a> {
    file: String,
    device: &'a DeviceIdentity,
    aliases: &'a [String],
    environment: &'a Environment,
    faults: Vec<FaultRecord>,
    entries: Vec<EntryRecord<'a>>,
}

impl Show {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let Parsed { document, faults } = read(&self.file)?;
        let wanted = |entry: &&Entry| is_wanted(&self.kernels, &entry.key.kernel);
        let entries: Vec<&Entry> = document.entries().iter().filter(wanted).collect();
        let record = Record {
            file: self.file.display().to_string(),
            device: document.device(),
            aliases: document.aliases(),
            environment: document.environment(),
            faults: FaultRecord::all(&self.file, &faults),
            entries: entries.iter().copied().map(EntryRecord::from).collect(),
        };
        self.output.write(&record, |out| {
            write_header(out, &document)?;
            let all = words::count(document.entries().len(), "entry", "entries");
            match entries.len() {
                shown if shown == document.entries().len() => write!(out, "{all}")?,
                shown => write!(out, "{shown} of {all}")?,
            }
            match faults.len() {
                0 => writeln!(out)?,
                bad => writeln!(out, ", {} left out", words::count(bad, "bad one", "bad ones"))?,
            }
            let table = table(&entries);
            if table.is_empty() { Ok(()) } else { write!(out, "\n{table}") }
        })?;
        Ok(Exit::Yes)
    }
}

fn write_header(out: &mut dyn Write, document: &Document) -> io::Result<()> {
    let DeviceIdentity { backend, name, compute_capability, .. } = document.device();
    let DeviceIdentity { multiprocessors, memory_bytes, l2_bytes, processor, .. } =
        document.device();
    writeln!(
        out,
        "{name}, backend {backend}, compute capability {compute_capability}, {multiprocessors} \
         multiprocessors, {memory_bytes} bytes of memory, {l2_bytes} of L2 cache"
    )?;
    if let Some(processor) = processor {
        writeln!(out, "run by {processor}")?;
    }
    if !document.aliases().is_empty() {
        writeln!(out, "also for {}", document.aliases().join(", "))?;
    }
    let Environment { driver, compiler, tuner } = document.environment();
    let known = [("driver", driver), ("compiler", compiler), ("tuner", tuner)];
    let known = known.iter().filter(|(_, version)| !version.is_empty());
    let known: Vec<String> = known.map(|(what, version)| format!("{what} {version}")).collect();
    if !known.is_empty() {
        writeln!(out, "measured with {}", known.join(", "))?;
    }
    Ok(())
}

fn table(entries: &[&Entry]) -> Table {
    let mut table = Table::of_entries([
        ("choice", Side::Left),
        ("parameters", Side::Left),
        ("launches", Side::Right),
        ("median", Side::Right),
        ("vs default", Side::Right),
        ("samples", Side::Right),
        ("date", Side::Left),
    ]);
    for entry in entries {
        let Entry { choice, parameters, launches, chosen, default, found, .. } = *entry;
        let against = words::change(default.median_ns, chosen.median_ns);
        table.push_entry(
            entry,
            [
                words::choice(*choice),
                words::parameters(parameters),
                launches.to_string(),
                words::time(chosen.median_ns),
                against.map(words::percent).unwrap_or_default(),
                chosen.samples.to_string(),
                found.date.clone(),
            ],
        );
    }
    table
}
