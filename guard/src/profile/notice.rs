//! Notices about a loaded profile: ignored entries, and entries that may be stale.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::launch::violation::count;
use derive_more::Display;
use serde::Serialize;

use super::device::{DeviceMismatch, Environment, same, same_major};
use super::error::{FileFault, ProfileError};
use super::matching::Layer;
use super::model::Entry;

/// The effect of a notice on the entries that it concerns.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum NoticeLevel {
    /// The entries are used.
    Note,
    /// The entries are used, and every lookup reports that they may not be the fastest.
    Degrade,
    /// The entries are ignored.
    Reject,
}

/// A notice about a file or some of its entries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileNotice {
    /// The file that the program names does not exist.
    #[error("the file does not exist: give another path, or tune")]
    Missing,
    /// The file cannot be used.
    #[error(transparent)]
    Unreadable(#[from] ProfileError),
    /// The file is for another device.
    #[error(transparent)]
    OtherDevice(#[from] DeviceMismatch),
    /// An entry or a decision list is invalid.
    #[error("{0}; this part of the file is ignored")]
    InvalidEntry(FileFault),
    /// Entries have other size names than the first entry of their key.
    #[error(
        "ignored {} of {key} with sizes {}, others have {}: re-tune",
        count(*entries, "entry"), given.join(" "), expected.join(" ")
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
        "{} measured with {component} {measured}, this is {running}: {}",
        count(*entries, "entry"),
        if self.level() == NoticeLevel::Degrade { "re-tune" } else { "still used" }
    )]
    OtherVersion {
        /// The component: `driver`, `compiler` or `tuner`.
        component: &'static str,
        /// The version of the measurements.
        measured: String,
        /// The running version.
        running: String,
        /// Number of entries.
        entries: usize,
    },
}

/// A notice with the layer that it concerns, displayed as `reject: user profile /path/nvidia-h200.ron: ...`.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display(
    "{}: {layer} profile{}: {notice}",
    notice.level(),
    path.as_ref().map_or_else(String::new, |path| format!(" {}", path.display()))
)]
pub struct LayerNotice {
    /// The layer.
    pub layer: Layer,
    /// The layer's file, if it has one.
    pub path: Option<PathBuf>,
    /// The notice.
    pub notice: ProfileNotice,
}

impl ProfileNotice {
    /// The effect on the entries that it concerns. Only another major version of the driver degrades
    /// entries.
    pub fn level(&self) -> NoticeLevel {
        match self {
            Self::OtherVersion { component, measured, running, .. }
                if *component == DRIVER && !same_major(measured, running) =>
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

/// Whether an entry was measured with another major version of the driver.
pub(super) fn is_degraded(entry: &Entry, file: &Environment, running: &Environment) -> bool {
    let [driver, ..] = measured_with(entry, file);
    !same_major(driver, &running.driver)
}

/// Compares the versions that entries were measured with to the running versions.
pub(super) fn version_notices(
    entries: &[Entry],
    file: &Environment,
    running: &Environment,
) -> Vec<ProfileNotice> {
    let mut others = BTreeMap::new();
    for entry in entries {
        let running = [&running.driver, &running.compiler, &running.tuner];
        let versions = COMPONENTS.into_iter().zip(measured_with(entry, file)).zip(running);
        for (place, ((component, measured), running)) in versions.enumerate() {
            if !same(measured, running) {
                *others.entry((place, component, measured, running)).or_insert(0) += 1;
            }
        }
    }
    let notice = |((_, component, measured, running), entries): ((_, _, &str, &String), _)| {
        let (measured, running) = (measured.to_owned(), running.clone());
        ProfileNotice::OtherVersion { component, measured, running, entries }
    };
    others.into_iter().map(notice).collect()
}

/// The versions of [`COMPONENTS`] in the entry, or in its file if the entry has none.
fn measured_with<'a>(entry: &'a Entry, file: &'a Environment) -> [&'a str; 3] {
    let found = &entry.found;
    [(&found.driver, &file.driver), (&found.compiler, &file.compiler), (&found.tuner, &file.tuner)]
        .map(|(own, of_file)| if own.is_empty() { of_file.as_str() } else { own })
}

/// Components whose versions may differ between measuring and running.
const COMPONENTS: [&str; 3] = [DRIVER, "compiler", "tuner"];
const DRIVER: &str = "driver";
