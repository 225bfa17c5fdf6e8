//! What is to be said of a profile before it serves.

use core::fmt;
use std::path::PathBuf;

use super::entry::Entry;
use super::environment::{Environment, same, same_major};
use super::error::{Fault, ProfileError};
use super::identity::Mismatch;
use super::layers::Layer;

/// What a finding means for the entries that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// They serve.
    Note,
    /// They serve, and each answer says that it may not be the fastest.
    Degrade,
    /// They do not serve.
    Reject,
}

/// Something about a file, or about some of its entries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// There is no such file, although it was named.
    #[error("there is no such file: name another, or tune")]
    Missing,
    /// The file cannot be used.
    #[error(transparent)]
    Unreadable(#[from] ProfileError),
    /// The file is another device's.
    #[error(transparent)]
    OtherDevice(#[from] Mismatch),
    /// One entry is bad.
    #[error("{0}, the entry is left out")]
    Entry(Fault),
    /// Entries name their sizes differently from earlier ones of their key.
    #[error(
        "{entries} entries of {key} have sizes {}, others {}: tune anew",
        given.join(" "), expected.join(" ")
    )]
    OtherSizes {
        /// The kernel and its purpose.
        key: String,
        /// The sizes of the entries that are left out.
        given: Vec<String>,
        /// The sizes of those that serve.
        expected: Vec<String>,
        /// How many are left out.
        entries: usize,
    },
    /// Entries were measured under another major CUDA version.
    #[error("{entries} entries are from driver {measured}, this is {running}: tune anew")]
    DriverMajor {
        /// The CUDA version of the driver then.
        measured: String,
        /// And now.
        running: String,
        /// How many.
        entries: usize,
    },
    /// Entries were measured under another minor CUDA version.
    #[error("{entries} entries are from driver {measured}, this is {running}: they serve")]
    DriverMinor {
        /// The CUDA version of the driver then.
        measured: String,
        /// And now.
        running: String,
        /// How many.
        entries: usize,
    },
    /// Entries were measured with another compiler.
    #[error("{entries} entries are from compiler {measured}, this is {running}: they serve")]
    Compiler {
        /// The version of the compiler then.
        measured: String,
        /// And now.
        running: String,
        /// How many.
        entries: usize,
    },
    /// Entries were measured by another tuner.
    #[error("{entries} entries are from tuner {measured}, this is {running}: they serve")]
    Tuner {
        /// The version of the tuner then.
        measured: String,
        /// And now.
        running: String,
        /// How many.
        entries: usize,
    },
}

/// A finding with the layer that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerFinding {
    /// The layer.
    pub layer: Layer,
    /// Its file, where it has one.
    pub path: Option<PathBuf>,
    /// What is to be said.
    pub finding: Finding,
}

impl Finding {
    /// What it means for the entries that it is about.
    #[must_use]
    pub const fn level(&self) -> Level {
        match self {
            Self::Missing
            | Self::Unreadable(_)
            | Self::OtherDevice(_)
            | Self::Entry(_)
            | Self::OtherSizes { .. } => Level::Reject,
            Self::DriverMajor { .. } => Level::Degrade,
            Self::DriverMinor { .. } | Self::Compiler { .. } | Self::Tuner { .. } => Level::Note,
        }
    }
}

impl LayerFinding {
    /// What it means for the entries that it is about.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.finding.level()
    }
}

impl fmt::Display for Level {
    /// `note`, `degrade`, `reject`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Degrade => "degrade",
            Self::Reject => "reject",
        })
    }
}

impl fmt::Display for LayerFinding {
    /// `reject: user profile /path/nvidia-h200.ron: ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} profile", self.level(), self.layer)?;
        if let Some(path) = &self.path {
            write!(f, " {}", path.display())?;
        }
        write!(f, ": {}", self.finding)
    }
}

/// Whether an entry was measured under another major CUDA version than the one that runs.
///
/// What an entry says of itself counts; where it is silent, what its file says.
pub(super) fn is_degraded(entry: &Entry, file: &Environment, running: &Environment) -> bool {
    !same_major(or(&entry.found.driver, &file.driver), &running.driver)
}

/// Compares the environment of each entry with the one that runs.
pub(super) fn staleness(
    entries: &[Entry],
    file: &Environment,
    running: &Environment,
) -> Vec<Finding> {
    let driver = |entry: &Entry| or(&entry.found.driver, &file.driver).to_owned();
    let compiler = |entry: &Entry| or(&entry.found.compiler, &file.compiler).to_owned();
    let tuner = |entry: &Entry| or(&entry.found.tuner, &file.tuner).to_owned();
    let mut findings = Vec::new();
    for (measured, entries) in others(entries, driver, &running.driver) {
        let running = running.driver.clone();
        findings.push(if same_major(&measured, &running) {
            Finding::DriverMinor { measured, running, entries }
        } else {
            Finding::DriverMajor { measured, running, entries }
        });
    }
    for (measured, entries) in others(entries, compiler, &running.compiler) {
        let running = running.compiler.clone();
        findings.push(Finding::Compiler { measured, running, entries });
    }
    for (measured, entries) in others(entries, tuner, &running.tuner) {
        let running = running.tuner.clone();
        findings.push(Finding::Tuner { measured, running, entries });
    }
    findings
}

/// The versions that differ from the running one, each with how many entries have it.
fn others(
    entries: &[Entry],
    version: impl Fn(&Entry) -> String,
    running: &str,
) -> std::collections::BTreeMap<String, usize> {
    let mut counts = std::collections::BTreeMap::new();
    for measured in entries.iter().map(version).filter(|measured| !same(measured, running)) {
        *counts.entry(measured).or_insert(0) += 1;
    }
    counts
}

fn or<'a>(own: &'a str, file: &'a str) -> &'a str {
    if own.is_empty() { file } else { own }
}
