//! Profiles to run the command on.

use std::fs;
use std::num::NonZeroU64;

use gridguard::catalog;
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Key, Provenance, StoredChoice, Summary,
};
use gridguard_problems::current_sources;
use tempfile::TempDir;

use crate::command::{Ran, run};

pub(crate) const EARLY: &str = "2026-11-01T12:00:00Z";
pub(crate) const LATE: &str = "2026-11-20T12:00:00Z";

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// An entry for `rms_norm` of 8 columns, whole in 2 ms.
pub(crate) fn norm(rows: u64, date: &str) -> Entry {
    let source = current_sources("rms_norm").pop().expect("a kernel");
    let summary =
        |median_ns| Summary { median_ns, low_ns: median_ns, high_ns: median_ns, samples: 20 };
    let key = Key { kernel: "rms_norm".into(), source, dtypes: "f32".into(), ..Key::default() };
    Entry {
        key,
        shape: vec![("rows".into(), rows), ("columns".into(), 8)],
        choice: StoredChoice::Whole,
        parameters: Vec::new(),
        launches: 1,
        chosen: summary(2_000_000),
        default: summary(2_500_000),
        found: Provenance {
            date: date.into(),
            candidates: 6,
            samples: 80,
            ..Provenance::default()
        },
    }
}

pub(crate) fn chunks_of(items: u64) -> StoredChoice {
    StoredChoice::Chunked { max_items: NonZeroU64::new(items).expect("some") }
}

pub(crate) fn host() -> DeviceIdentity {
    DeviceIdentity::new(&catalog::gpu("h200").expect("in the catalogue").limits).on_host()
}

pub(crate) fn document(
    device: DeviceIdentity,
    entries: impl IntoIterator<Item = Entry>,
) -> Document {
    let tuner = env!("CARGO_PKG_VERSION").to_owned();
    let mut document = Document::new(device, Environment { tuner, ..Environment::default() });
    for entry in entries {
        document.insert(entry).expect("taken");
    }
    document
}

/// Writes a profile of the host.
pub(crate) fn put(folder: &TempDir, name: &str, entries: impl IntoIterator<Item = Entry>) {
    put_text(folder, name, &document(host(), entries).to_string());
}

pub(crate) fn put_text(folder: &TempDir, name: &str, text: &str) {
    fs::write(folder.path().join(name), text).expect("written");
}

pub(crate) fn text(folder: &TempDir, name: &str) -> String {
    fs::read_to_string(folder.path().join(name)).expect("there")
}

/// The text of a profile whose first entry is invalid.
pub(crate) fn with_bad_entry(entries: impl IntoIterator<Item = Entry>) -> String {
    let text = document(host(), entries).to_string();
    text.replacen("choice: whole", "choice: hole", 1)
}

pub(crate) fn profile(folder: &TempDir, args: &str) -> Ran {
    run(folder.path(), &format!("profile {args}"))
}

pub(crate) fn rows(document: &Document) -> Vec<u64> {
    document.entries().iter().map(|entry| entry.shape[0].1).collect()
}
