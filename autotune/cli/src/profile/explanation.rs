//! What a lookup comes to, as data and as text.

use std::io::{self, Write};

use gridguard::profile::{
    Backend, DeviceIdentity, Entry, Key, Objective, Policy, Provenance, TunedChoice,
};
use gridguard::{Plan, Strategy};
use serde::Serialize;

use super::nearest::{Passed, total};
use super::record::EntryRecord;
use super::table::{Side, Table};
use super::words;

/// Which entry serves, how well it matches, and what was passed over.
#[derive(Serialize)]
pub(super) struct Explanation<'a> {
    pub(super) problem: String,
    pub(super) device: &'a DeviceIdentity,
    pub(super) policy: Policy,
    pub(super) objective: Objective,
    pub(super) source: &'a str,
    pub(super) variant: &'a str,
    /// `exact`, `bucket`, `neighbour` or `default`.
    pub(super) matched: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) distance_octaves: Option<f64>,
    /// Why no entry serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) layer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) entry: Option<EntryRecord<'a>>,
    pub(super) degraded: bool,
    pub(super) plan: Planned,
    pub(super) findings: Vec<String>,
    pub(super) considered: Vec<Passed<'a>>,
}

/// What the launch comes to.
#[derive(Serialize)]
pub(super) struct Planned {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) strategy: Option<Strategy>,
    pub(super) launches: u64,
    pub(super) largest_chunk: u64,
    /// Why the entry's choice is not taken, or why nothing is legal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
}

impl Planned {
    pub(super) fn new(plan: &Plan, refused: Option<String>) -> Self {
        let (launches, largest_chunk) = (plan.len(), plan.largest_chunk());
        Self { strategy: Some(plan.strategy()), launches, largest_chunk, refused }
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(refused) = &self.refused {
            writeln!(out, "not taken: {refused}")?;
        }
        let Some(strategy) = self.strategy else {
            return writeln!(out, "there is no plan");
        };
        let plural = if self.launches == 1 { "" } else { "es" };
        let whose = if self.refused.is_some() { "the default's plan" } else { "plan" };
        let (launches, items) = (self.launches, self.largest_chunk);
        writeln!(out, "{whose}: {strategy}, {launches} launch{plural} of up to {items} items")
    }
}

impl Explanation<'_> {
    pub(super) fn write_text(
        &self,
        out: &mut dyn Write,
        key: &Key,
        found: &TunedChoice<'_>,
    ) -> io::Result<()> {
        writeln!(out, "{} on {}", self.problem, on(self.device))?;
        write_key(out, key)?;
        match (found.entry, &self.reason) {
            (Some(entry), _) => self.write_entry(out, entry, found)?,
            (None, Some(reason)) => writeln!(out, "the default serves: {reason}")?,
            (None, None) => writeln!(out, "the default serves")?,
        }
        self.plan.write_text(out)?;
        for finding in &self.findings {
            writeln!(out, "{finding}")?;
        }
        if self.considered.is_empty() {
            return Ok(());
        }
        write!(out, "\nnot taken\n{}", table(&self.considered))
    }

    fn write_entry(
        &self,
        out: &mut dyn Write,
        entry: &Entry,
        found: &TunedChoice<'_>,
    ) -> io::Result<()> {
        let layer = self.layer.as_deref().unwrap_or_default();
        write!(out, "{}, entry {}, {layer} profile", found.matched, words::shape(&entry.shape))?;
        match &self.file {
            Some(file) => writeln!(out, " {file}")?,
            None => writeln!(out)?,
        }
        let chosen = words::chosen(entry.choice, &entry.parameters);
        let plural = if entry.launches == 1 { "" } else { "es" };
        writeln!(out, "choice: {chosen}, {} launch{plural} there", entry.launches)?;
        let time = |ns| Some(words::time(ns)).filter(|time| !time.is_empty());
        if let Some(chosen) = time(entry.chosen.median_ns) {
            write!(out, "measured: {chosen} of {} samples", entry.chosen.samples)?;
            let against = words::change(entry.default.median_ns, entry.chosen.median_ns);
            if let Some((default, against)) = time(entry.default.median_ns).zip(against) {
                write!(out, ", {} against the default's {default}", words::percent(against))?;
            }
            writeln!(out)?;
        }
        write_provenance(out, &entry.found)?;
        if self.degraded {
            writeln!(
                out,
                "it is from another major version of the driver: it may not be the fastest"
            )?;
        }
        Ok(())
    }
}

fn write_key(out: &mut dyn Write, key: &Key) -> io::Result<()> {
    write!(out, "looked up: source {}", key.source)?;
    if !key.variant.is_empty() {
        write!(out, ", variant {}", key.variant)?;
    }
    writeln!(out, ", {}, {}", key.policy, key.objective)
}

fn write_provenance(out: &mut dyn Write, found: &Provenance) -> io::Result<()> {
    let Provenance { date, driver, compiler, tuner, candidates, failed, samples, .. } = found;
    write!(out, "found: {candidates} candidates, {failed} failed, {samples} samples")?;
    for (what, text) in
        [("driver ", driver), ("compiler ", compiler), ("tuner ", tuner), ("", date)]
    {
        if !text.is_empty() {
            write!(out, ", {what}{text}")?;
        }
    }
    writeln!(out)
}

fn table(considered: &[Passed<'_>]) -> Table {
    let mut table = Table::new([
        ("shape", Side::Left),
        ("types", Side::Left),
        ("layer", Side::Left),
        ("choice", Side::Left),
        ("octaves", Side::Right),
        ("why", Side::Left),
    ]);
    for passed in considered {
        let Passed { entry, octaves, layer, reason, .. } = passed;
        let sizes: Vec<String> =
            octaves.iter().map(|(name, octaves)| format!("{name} {octaves:.3}")).collect();
        let octaves = match sizes.is_empty() {
            true => String::new(),
            false => format!("{:.3} ({})", total(octaves), sizes.join(", ")),
        };
        table.push([
            words::shape(&entry.shape),
            entry.key.dtypes.clone(),
            layer.clone(),
            words::chosen(entry.choice, &entry.parameters),
            octaves,
            reason.clone(),
        ]);
    }
    table
}

/// `the host as NVIDIA H200`, or the device's name.
fn on(device: &DeviceIdentity) -> String {
    match device.backend {
        Backend::Host => format!("the host as {}", device.name),
        Backend::Cuda => device.name.clone(),
    }
}
