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
        for (path, entries) in files.iter().zip([&self.only_first, &self.only_second]) {
            section(f, &format!("only in {}", path.display()), entries, |entry| {
                (entry, format!("{}, source {}", described(entry), entry.key.source))
            })?;
        }
        section(f, "different choices", &self.choices, |[one, other]| {
            (one, format!("{} -> {}", described(one), described(other)))
        })?;
        section(f, "different times", &self.times, |[one, other]| {
            let chosen = times(one.chosen, other.chosen);
            let default = times(one.default, other.default);
            (one, format!("{} {chosen}, default {default}", entry::choice(one.choice)))
        })
    }
}

/// A title and a line for each difference, if there are any.
fn section<T>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    differences: &[T],
    line: impl Fn(&T) -> (&Entry, String),
) -> fmt::Result {
    if !differences.is_empty() {
        writeln!(f, "{title}")?;
    }
    differences
        .iter()
        .map(line)
        .try_for_each(|(entry, text)| writeln!(f, "  {}: {text}", entry::subject(entry)))
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
fn times(one: Summary, other: Summary) -> String {
    let [before, after] = [one, other]
        .map(|summary| entry::time(summary.median_ns).unwrap_or_else(|| "not measured".into()));
    match entry::change(one.median_ns, other.median_ns) {
        Some(change) => format!("{before} -> {after} ({})", entry::percent(change)),
        None => format!("{before} -> {after}"),
    }
}
