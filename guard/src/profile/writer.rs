//! Writes documents as RON: the same bytes for the same document.
//!
//! An entry takes four lines: what it is about, what was chosen, how long that took, how it was
//! found. So a diff shows which of these changed.

use core::fmt::{self, Write};

use super::document::{Document, SCHEMA};
use super::entry::{Entry, Named, Provenance, StopReason, StoredChoice, Summary};
use super::identity::DeviceIdentity;
use super::key::{Key, L2, Objective, Policy, Submission};
use super::processor::Processor;

/// A document as RON.
pub(super) struct Ron<'a>(pub(super) &'a Document);

impl fmt::Display for Ron<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let environment = self.0.environment();
        writeln!(f, "(\n    schema: {SCHEMA},")?;
        device(f, self.0.device())?;
        f.write_str("    aliases: [")?;
        for (place, alias) in self.0.aliases().iter().enumerate() {
            write!(f, "{}{alias:?}", separator(place))?;
        }
        writeln!(
            f,
            "],\n    environment: (driver: {:?}, compiler: {:?}, tuner: {:?}),\n    entries: [",
            environment.driver, environment.compiler, environment.tuner
        )?;
        self.0.entries().iter().try_for_each(|one| entry(f, one))?;
        f.write_str("    ],\n)\n")
    }
}

fn device(f: &mut fmt::Formatter<'_>, device: &DeviceIdentity) -> fmt::Result {
    let DeviceIdentity { backend, name, compute_capability: cc, .. } = device;
    let DeviceIdentity { multiprocessors, memory_bytes, l2_bytes, processor, .. } = device;
    write!(
        f,
        "    device: (backend: {backend}, name: {name:?}, compute_capability: ({}, {}), \
         multiprocessors: {multiprocessors}, memory_bytes: {memory_bytes}, l2_bytes: {l2_bytes}",
        cc.major, cc.minor
    )?;
    if let Some(Processor { name, threads }) = processor {
        write!(f, ", processor: Some((name: {name:?}, threads: {threads}))")?;
    }
    f.write_str("),\n")
}

fn entry(f: &mut fmt::Formatter<'_>, entry: &Entry) -> fmt::Result {
    let Entry { key, shape, choice, parameters, launches, chosen, default, found } = entry;
    f.write_str("        (")?;
    write_key(f, key)?;
    f.write_str(",\n         shape: ")?;
    named(f, shape)?;
    f.write_str(", choice: ")?;
    write_choice(f, *choice)?;
    f.write_str(", parameters: ")?;
    named(f, parameters)?;
    write!(f, ", launches: {launches},\n         chosen: ")?;
    summary(f, *chosen)?;
    f.write_str(", default: ")?;
    summary(f, *default)?;
    f.write_str(",\n         found: ")?;
    provenance(f, found)?;
    f.write_str("),\n")
}

fn write_key(f: &mut fmt::Formatter<'_>, key: &Key) -> fmt::Result {
    let Key { kernel, source, variant, dtypes, policy, objective } = key;
    write!(
        f,
        "kernel: {kernel:?}, source: {source:?}, variant: {variant:?}, dtypes: {dtypes:?}, policy: "
    )?;
    write_policy(f, *policy)?;
    f.write_str(", objective: ")?;
    write_objective(f, *objective)
}

pub(super) fn write_policy(f: &mut fmt::Formatter<'_>, policy: Policy) -> fmt::Result {
    let l2 = match policy.l2 {
        L2::Cold => "cold",
        L2::Hot => "hot",
    };
    let submission = match policy.submission {
        Submission::Eager => "eager",
        Submission::Graph => "graph",
    };
    write!(f, "(l2: {l2}, submission: {submission})")
}

pub(super) fn write_objective(f: &mut fmt::Formatter<'_>, objective: Objective) -> fmt::Result {
    match objective {
        Objective::Throughput => f.write_str("throughput"),
        Objective::Latency { max_launch_us } => {
            write!(f, "latency(max_launch_us: {max_launch_us})")
        }
        Objective::Memory { bytes_per_item, bytes } => {
            write!(f, "memory(bytes_per_item: {bytes_per_item}, bytes: {bytes})")
        }
    }
}

fn write_choice(f: &mut fmt::Formatter<'_>, choice: StoredChoice) -> fmt::Result {
    match choice {
        StoredChoice::Automatic => f.write_str("automatic"),
        StoredChoice::Whole => f.write_str("whole"),
        StoredChoice::Folded => f.write_str("folded"),
        StoredChoice::Chunked { max_items } => write!(f, "chunked(max_items: {max_items})"),
    }
}

pub(super) fn named(f: &mut fmt::Formatter<'_>, named: &Named) -> fmt::Result {
    f.write_char('[')?;
    for (place, (name, value)) in named.iter().enumerate() {
        write!(f, "{}({name:?}, {value})", separator(place))?;
    }
    f.write_char(']')
}

fn summary(f: &mut fmt::Formatter<'_>, summary: Summary) -> fmt::Result {
    let Summary { median_ns, low_ns, high_ns, samples } = summary;
    write!(f, "(median_ns: {median_ns}, low_ns: {low_ns}, high_ns: {high_ns}, samples: {samples})")
}

fn provenance(f: &mut fmt::Formatter<'_>, found: &Provenance) -> fmt::Result {
    let Provenance { date, driver, compiler, tuner, candidates, failed, samples, stopped } = found;
    let stopped = match stopped {
        StopReason::Precise => "precise",
        StopReason::Noise => "noise",
        StopReason::Ceiling => "ceiling",
        StopReason::Timeout => "timeout",
    };
    write!(
        f,
        "(date: {date:?}, driver: {driver:?}, compiler: {compiler:?}, tuner: {tuner:?}, \
         candidates: {candidates}, failed: {failed}, samples: {samples}, stopped: {stopped})"
    )
}

const fn separator(place: usize) -> &'static str {
    if place == 0 { "" } else { ", " }
}
