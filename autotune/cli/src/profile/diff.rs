//! `gridguard profile diff`: compares the devices, choices and times of two profiles.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use gridguard::profile::{DeviceIdentity, Entry, Summary};
use serde::Serialize;

use super::entry;
use crate::error::{CommandError, Exit};
use crate::measure::args;
use crate::output::{OutputArgs, text};

#[derive(Args)]
pub(crate) struct Diff {
    /// First profile
    first: PathBuf,
    /// Second profile
    second: PathBuf,
    /// Largest relative difference of times to ignore
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = args::percent)]
    times: f64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Default, PartialEq, Serialize)]
struct DiffReport<'a> {
    same: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<[&'a DeviceIdentity; 2]>,
    only_first: Vec<&'a Entry>,
    only_second: Vec<&'a Entry>,
    choices: Vec<[&'a Entry; 2]>,
    times: Vec<[&'a Entry; 2]>,
}

impl Diff {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let first = entry::read(&self.first)?.document;
        let second = entry::read(&self.second)?.document;
        let mut report = DiffReport::default();
        let devices = [first.device(), second.device()];
        report.devices = Some(devices).filter(|[one, other]| one != other);
        let choice = |entry: &Entry| (entry.choice, entry.parameters.clone(), entry.launches);
        for pair in first.pairs(&second) {
            match pair {
                (Some(one), Some(other)) if choice(one) != choice(other) => {
                    report.choices.push([one, other]);
                }
                (Some(one), Some(other)) => {
                    if self.differ(one.chosen, other.chosen)
                        || self.differ(one.default, other.default)
                    {
                        report.times.push([one, other]);
                    }
                }
                (one, other) => {
                    report.only_first.extend(one);
                    report.only_second.extend(other);
                }
            }
        }
        report.same = report == DiffReport::default();
        let shown = text(|f| {
            if report.same {
                return writeln!(f, "no difference in {}", entry::entries(first.entries().len()));
            }
            report.write_text(f, [&self.first, &self.second])
        });
        self.output.print(&report, shown)?;
        Ok(if report.same { Exit::Yes } else { Exit::No })
    }

    fn differ(&self, one: Summary, other: Summary) -> bool {
        let change = entry::change(one.median_ns, other.median_ns);
        change.map_or(one.median_ns != other.median_ns, |change| change.abs() > self.times)
    }
}

impl DiffReport<'_> {
    fn write_text(&self, f: &mut fmt::Formatter<'_>, files: [&Path; 2]) -> fmt::Result {
        for (path, device) in files.iter().zip(self.devices.iter().flatten()) {
            write!(f, "{}: {device}", path.display())?;
            if let Some(processor) = &device.processor {
                write!(f, ", processor {processor}")?;
            }
            writeln!(f)?;
        }
        let only = |entries: &[&'_ Entry]| -> Vec<String> {
            let line = |entry: &&Entry| {
                let source = &entry.key.source;
                format!("{}: {}, source {source}", entry::subject(entry), described(entry))
            };
            entries.iter().map(line).collect()
        };
        let choice = |[one, other]: &[&Entry; 2]| {
            format!("{}: {} -> {}", entry::subject(one), described(one), described(other))
        };
        let time = |[one, other]: &[&Entry; 2]| {
            let [chosen, default] =
                [(one.chosen, other.chosen), (one.default, other.default)].map(times);
            let (subject, choice) = (entry::subject(one), entry::choice(one.choice));
            format!("{subject}: {choice} {chosen}, default {default}")
        };
        for (title, lines) in [
            (format!("only in {}", files[0].display()), only(&self.only_first)),
            (format!("only in {}", files[1].display()), only(&self.only_second)),
            ("different choices".into(), self.choices.iter().map(choice).collect()),
            ("different times".into(), self.times.iter().map(time).collect()),
        ] {
            if !lines.is_empty() {
                writeln!(f, "{title}\n  {}", lines.join("\n  "))?;
            }
        }
        Ok(())
    }
}

/// `chunks of 8192, warps 4 in 102.4 us`.
fn described(entry: &Entry) -> String {
    let choice = entry::full_choice(entry.choice, &entry.parameters);
    match entry::time(entry.chosen.median_ns) {
        Some(time) => format!("{choice} in {time}"),
        None => choice,
    }
}

/// `102.4 us -> 110.0 us (+7.4 %)`.
fn times((one, other): (Summary, Summary)) -> String {
    let [before, after] = [one, other]
        .map(|summary| entry::time(summary.median_ns).unwrap_or_else(|| "not measured".into()));
    match entry::change(one.median_ns, other.median_ns) {
        Some(change) => format!("{before} -> {after} ({})", entry::percent(change)),
        None => format!("{before} -> {after}"),
    }
}
