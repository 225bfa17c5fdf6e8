//! Notices about a loaded profile: what was left out, and what may be stale.

use core::fmt;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::device::{DeviceMismatch, Environment, same, same_major};
use super::error::{FileFault, ProfileError};
use super::matching::Layer;
use super::model::Entry;

/// What a notice means for the entries that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeLevel {
    /// They are used.
    Note,
    /// They are used, and every lookup reports that they may not be the fastest.
    Degrade,
    /// They are not used.
    Reject,
}

/// A component whose version may differ between measuring and running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Component {
    /// The CUDA driver.
    Driver,
    /// The compiler of the device code.
    Compiler,
    /// The tuner.
    Tuner,
}

/// A notice about a file or some of its entries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileNotice {
    /// The file that the program names does not exist.
    #[error("there is no such file: give another path, or tune")]
    Missing,
    /// The file cannot be used.
    #[error(transparent)]
    Unreadable(#[from] ProfileError),
    /// The file is for another device.
    #[error(transparent)]
    OtherDevice(#[from] DeviceMismatch),
    /// An entry is invalid.
    #[error("{0}; the entry is ignored")]
    InvalidEntry(FileFault),
    /// Entries have other size names than the first entry of their key.
    #[error(
        "{entries} entries of {key} have sizes {}, others {}; they are ignored: re-tune",
        given.join(" "), expected.join(" ")
    )]
    OtherSizes {
        /// The key, as displayed.
        key: String,
        /// The size names of the ignored entries.
        given: Vec<String>,
        /// The size names of the entries in use.
        expected: Vec<String>,
        /// Number of ignored entries.
        entries: usize,
    },
    /// Entries were measured with another version of a component.
    #[error(
        "{entries} entries were measured with {component} {measured}, this is {running}: {}",
        if is_stale_driver(*component, measured, running) { "re-tune" } else { "they are still used" }
    )]
    OtherVersion {
        /// The component.
        component: Component,
        /// The version they were measured with.
        measured: String,
        /// The version now.
        running: String,
        /// Number of entries.
        entries: usize,
    },
}

/// A notice with the layer that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerNotice {
    /// The layer.
    pub layer: Layer,
    /// The layer's file, if it has one.
    pub path: Option<PathBuf>,
    /// The notice.
    pub notice: ProfileNotice,
}

impl ProfileNotice {
    /// What it means for the entries that it concerns. Only another major version of the driver
    /// degrades entries.
    #[must_use]
    pub fn level(&self) -> NoticeLevel {
        match self {
            Self::OtherVersion { component, measured, running, .. }
                if is_stale_driver(*component, measured, running) =>
            {
                NoticeLevel::Degrade
            }
            Self::OtherVersion { .. } => NoticeLevel::Note,
            Self::Missing
            | Self::Unreadable(_)
            | Self::OtherDevice(_)
            | Self::InvalidEntry(_)
            | Self::OtherSizes { .. } => NoticeLevel::Reject,
        }
    }
}

impl LayerNotice {
    /// What it means for the entries that it concerns.
    #[must_use]
    pub fn level(&self) -> NoticeLevel {
        self.notice.level()
    }
}

/// Whether an entry was measured with another major version of the driver.
pub(super) fn is_degraded(entry: &Entry, file: &Environment, running: &Environment) -> bool {
    let measured = measured_with(Component::Driver, entry, file);
    is_stale_driver(Component::Driver, measured, &running.driver)
}

fn is_stale_driver(component: Component, measured: &str, running: &str) -> bool {
    component == Component::Driver && !same_major(measured, running)
}

/// Compares the versions that entries were measured with to those now.
pub(super) fn version_notices(
    entries: &[Entry],
    file: &Environment,
    running: &Environment,
) -> Vec<ProfileNotice> {
    let mut notices = Vec::new();
    for (component, running) in [
        (Component::Driver, &running.driver),
        (Component::Compiler, &running.compiler),
        (Component::Tuner, &running.tuner),
    ] {
        let mut others = BTreeMap::new();
        let versions = entries.iter().map(|entry| measured_with(component, entry, file));
        for measured in versions.filter(|measured| !same(measured, running)) {
            *others.entry(measured).or_insert(0) += 1;
        }
        notices.extend(others.into_iter().map(|(measured, entries)| {
            let (measured, running) = (measured.to_owned(), running.clone());
            ProfileNotice::OtherVersion { component, measured, running, entries }
        }));
    }
    notices
}

/// The version in the entry, or in its file if the entry has none.
fn measured_with<'a>(component: Component, entry: &'a Entry, file: &'a Environment) -> &'a str {
    let (own, of_file) = match component {
        Component::Driver => (&entry.found.driver, &file.driver),
        Component::Compiler => (&entry.found.compiler, &file.compiler),
        Component::Tuner => (&entry.found.tuner, &file.tuner),
    };
    if own.is_empty() { of_file } else { own }
}

impl fmt::Display for NoticeLevel {
    /// `note`, `degrade`, `reject`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Component {
    /// `driver`, `compiler`, `tuner`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for LayerNotice {
    /// `reject: user profile /path/nvidia-h200.ron: ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} profile", self.level(), self.layer)?;
        if let Some(path) = &self.path {
            write!(f, " {}", path.display())?;
        }
        write!(f, ": {}", self.notice)
    }
}
