//! `gridguard profile diff`: what tells two profiles apart.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use gridguard::profile::{DeviceIdentity, Difference, Entry, Summary};
use serde::Serialize;

use super::record::EntryRecord;
use super::{read, words};
use crate::error::{CommandError, Exit};
use crate::output::OutputArgs;
use crate::tune::values;

#[derive(Args)]
pub(crate) struct Diff {
    /// A profile
    first: PathBuf,
    /// Another one
    second: PathBuf,
    /// Times that differ by no more than this are the same
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = values::percent)]
    times: f64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Record<'a> {
    same: bool,
    /// Where they differ, the first one's and the second one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<[&'a DeviceIdentity; 2]>,
    only_first: Vec<EntryRecord<'a>>,
    only_second: Vec<EntryRecord<'a>>,
    choices: Vec<[EntryRecord<'a>; 2]>,
    times: Vec<[EntryRecord<'a>; 2]>,
}

/// Differences by their kind.
#[derive(Default)]
struct Sorted<'a> {
    only_first: Vec<&'a Entry>,
    only_second: Vec<&'a Entry>,
    choices: Vec<(&'a Entry, &'a Entry)>,
    times: Vec<(&'a Entry, &'a Entry)>,
}

impl Diff {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let (first, second) = (read(&self.first)?.document, read(&self.second)?.document);
        let sorted = self.sorted(first.diff(&second));
        let devices = [first.device(), second.device()];
        let devices = Some(devices).filter(|[one, other]| one != other);
        let record = sorted.record(devices);
        self.output.write(&record, |out| {
            if let Some([one, other]) = record.devices {
                self.write_devices(out, one, other)?;
            }
            self.write_text(out, &sorted)?;
            if record.same {
                let entries = words::count(first.entries().len(), "entry", "entries");
                writeln!(out, "the same: {entries}")?;
            }
            Ok(())
        })?;
        Ok(if record.same { Exit::Yes } else { Exit::No })
    }

    fn sorted<'a>(&self, differences: Vec<Difference<'a>>) -> Sorted<'a> {
        let mut sorted = Sorted::default();
        for difference in differences {
            match difference {
                Difference::OnlyFirst(entry) => sorted.only_first.push(entry),
                Difference::OnlySecond(entry) => sorted.only_second.push(entry),
                Difference::Choice(one, other) => sorted.choices.push((one, other)),
                Difference::Times(one, other) if self.is_other_time(one, other) => {
                    sorted.times.push((one, other));
                }
                // Who found it when makes no other profile of it.
                _ => {}
            }
        }
        sorted
    }

    fn is_other_time(&self, one: &Entry, other: &Entry) -> bool {
        let differ = |one: Summary, other: Summary| {
            let change = words::change(one.median_ns, other.median_ns);
            change.map_or(one.median_ns != other.median_ns, |change| change.abs() > self.times)
        };
        differ(one.chosen, other.chosen) || differ(one.default, other.default)
    }

    fn write_devices(
        &self,
        out: &mut dyn Write,
        one: &DeviceIdentity,
        other: &DeviceIdentity,
    ) -> io::Result<()> {
        for (path, device) in [(&self.first, one), (&self.second, other)] {
            let DeviceIdentity { name, backend, compute_capability, multiprocessors, .. } = device;
            write!(
                out,
                "{} is of {name}, backend {backend}, compute capability {compute_capability}, \
                 {multiprocessors} multiprocessors",
                path.display()
            )?;
            match &device.processor {
                Some(processor) => writeln!(out, ", run by {processor}")?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }

    fn write_text(&self, out: &mut dyn Write, sorted: &Sorted<'_>) -> io::Result<()> {
        let Sorted { only_first, only_second, choices, times } = sorted;
        for (path, entries) in [(&self.first, only_first), (&self.second, only_second)] {
            for (place, entry) in entries.iter().enumerate() {
                if place == 0 {
                    writeln!(out, "only in {}", path.display())?;
                }
                let (subject, source) = (words::subject(entry), &entry.key.source);
                writeln!(out, "  {subject}: {}, source {source}", described(entry))?;
            }
        }
        for (place, (one, other)) in choices.iter().enumerate() {
            if place == 0 {
                writeln!(out, "other choices")?;
            }
            let (subject, one, other) = (words::subject(one), described(one), described(other));
            writeln!(out, "  {subject}: {one} -> {other}")?;
        }
        for (place, (one, other)) in times.iter().enumerate() {
            if place == 0 {
                writeln!(out, "other times")?;
            }
            let chosen = times_changed(one.chosen, other.chosen);
            let default = times_changed(one.default, other.default);
            let (subject, choice) = (words::subject(one), words::choice(one.choice));
            writeln!(out, "  {subject}: {choice} {chosen}, the default {default}")?;
        }
        Ok(())
    }
}

impl<'a> Sorted<'a> {
    fn record(&self, devices: Option<[&'a DeviceIdentity; 2]>) -> Record<'a> {
        let all = |entries: &[&'a Entry]| entries.iter().copied().map(EntryRecord::from).collect();
        let pairs = |entries: &[(&'a Entry, &'a Entry)]| {
            entries.iter().map(|(one, other)| [(*one).into(), (*other).into()]).collect()
        };
        let Self { only_first, only_second, choices, times } = self;
        let entries_are_same = only_first.is_empty()
            && only_second.is_empty()
            && choices.is_empty()
            && times.is_empty();
        Record {
            same: devices.is_none() && entries_are_same,
            devices,
            only_first: all(only_first),
            only_second: all(only_second),
            choices: pairs(choices),
            times: pairs(times),
        }
    }
}

/// `chunks of 8192, warps 4 in 102.4 us`.
fn described(entry: &Entry) -> String {
    let chosen = words::chosen(entry.choice, &entry.parameters);
    match words::time(entry.chosen.median_ns) {
        none if none.is_empty() => chosen,
        time => format!("{chosen} in {time}"),
    }
}

/// `102.4 us -> 110.0 us (+7.4 %)`.
fn times_changed(one: Summary, other: Summary) -> String {
    let change = words::change(one.median_ns, other.median_ns).map(words::percent);
    let time = |ns| Some(words::time(ns)).filter(|time| !time.is_empty());
    let [one, other] =
        [one, other].map(|of| time(of.median_ns).unwrap_or_else(|| "not measured".into()));
    change.map_or_else(
        || format!("{one} -> {other}"),
        |change| format!("{one} -> {other} ({change})"),
    )
}
