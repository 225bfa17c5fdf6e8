//! Merges documents of one device.

use core::cmp::Ordering;
use core::fmt;
use std::collections::BTreeSet;

use derive_more::Display;
use serde::Serialize;

use super::decide::{ServedShape, decision_lists};
use super::device::{DeviceIdentity, DeviceMismatch};
use super::document::Document;
use super::error::{MAX_ALIASES, MAX_ENTRIES, ProfileError};
use super::model::{Entry, Key};

/// Two different entries for the same key and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeConflict {
    /// The entry in the merged document.
    pub kept: Entry,
    /// The dropped entry.
    pub dropped: Entry,
}

/// Why one of two entries for the same key and shape is kept.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MergeReason {
    /// It has the later date, or the other entry has none.
    #[display("the kept one is later")]
    Date,
    /// The dates are the same, and it has more samples.
    #[display("the kept one has more samples")]
    Samples,
    /// Dates and samples are the same. One is kept by an order that does not depend on the files.
    #[display("date and number of samples are the same")]
    Order,
    /// It replaced the other entry, independent of dates and samples.
    #[display("the kept one replaces it")]
    Replaced,
}

impl MergeConflict {
    /// Why [`Self::kept`] is kept.
    pub fn reason(&self) -> MergeReason {
        let Self { kept, dropped } = self;
        let samples = kept.chosen.samples.cmp(&dropped.chosen.samples);
        match (kept.found.date.cmp(&dropped.found.date), samples) {
            (Ordering::Greater, _) => MergeReason::Date,
            (Ordering::Equal, Ordering::Greater) => MergeReason::Samples,
            (Ordering::Equal, Ordering::Equal) => MergeReason::Order,
            _ => MergeReason::Replaced,
        }
    }
}

impl Document {
    /// Merges another document of the same device into this one, as [`Self::merge_all`].
    ///
    /// # Errors
    ///
    /// As [`Self::merge_all`].
    pub fn merge(&mut self, other: &Self) -> Result<Vec<MergeConflict>, ProfileError> {
        self.merge_all(core::slice::from_ref(other))
    }

    /// Merges other documents of the same device into this one.
    ///
    /// The result depends neither on the order of the documents nor on repetitions. For each key and shape the
    /// latest entry is kept. With equal dates the entry with the most samples is kept, else the greatest. The greatest
    /// decision list of a key is kept that contradicts no kept entry; if there is none, the entries make a new one, unless
    /// it is [left out](super::decision_lists). The smallest device name becomes the document's name, and the others become
    /// aliases. The latest version of each component is kept.
    ///
    /// Devices are the same if all their figures agree and their names are linked. Two documents are linked if
    /// they share a name or an alias, directly or through other documents. Merged one by one, a document that
    /// is linked only through a later document is rejected.
    ///
    /// # Errors
    ///
    /// [`ProfileErrorKind::OtherDevice`](super::ProfileErrorKind::OtherDevice), or too many entries or aliases. The
    /// document is then unchanged.
    pub fn merge_all(&mut self, others: &[Self]) -> Result<Vec<MergeConflict>, ProfileError> {
        let all: Vec<&Self> = core::iter::once(&*self).chain(others).collect();
        let (device, aliases) = same_device(self, &all)
            .map_err(|(document, mismatch)| ProfileError::other_device(document, mismatch))?;
        if aliases.len() > MAX_ALIASES {
            return Err(ProfileError::merged_aliases(aliases.len()));
        }
        let ranked = ranked(&all);
        let subjects = || ranked.chunk_by(|one, other| one.subject() == other.subject());
        let entries = subjects().count();
        if entries > MAX_ENTRIES {
            return Err(ProfileError::merged_entries(entries));
        }
        let mut conflicts = Vec::new();
        let mut merged = Vec::with_capacity(entries);
        for same in subjects() {
            let Some((&kept, dropped)) = same.split_last() else { continue };
            conflicts.extend(
                dropped
                    .iter()
                    .map(|&dropped| MergeConflict { kept: kept.clone(), dropped: dropped.clone() }),
            );
            merged.push(kept.clone());
        }
        let environment = self.environment.clone();
        let environment = others.iter().fold(environment, |one, two| one.latest(&two.environment));
        // The greatest of the lists that no merged entry contradicts, so that the order does not matter.
        let mut lists: Vec<_> = all.iter().flat_map(|one| one.decisions.iter().cloned()).collect();
        lists.sort();
        let mut keys: BTreeSet<Key> = lists.iter().map(|list| list.key.clone()).collect();
        let moved: Vec<_> = all.iter().flat_map(|one| one.attainable.iter().copied()).collect();
        let attainable = Vec::new();
        let mut merged =
            Self { device, aliases, environment, attainable, decisions: lists, entries: merged };
        for one in moved {
            merged.add_attainable(one)?;
        }
        merged.check_decisions();
        merged.decisions.reverse();
        merged.decisions.dedup_by(|lesser, greater| lesser.key == greater.key);
        merged.decisions.reverse();
        // Where none is left, the entries alone make a new one.
        keys.retain(|key| merged.decision(key).is_none());
        let of_keys = merged.entries.iter().filter(|entry| keys.contains(&entry.key));
        let shapes: Vec<ServedShape> = of_keys.map(ServedShape::of).collect();
        for of_kernel in shapes.chunk_by(|one, other| one.key.kernel == other.key.kernel) {
            for list in decision_lists(of_kernel) {
                merged.decide(list)?;
            }
        }
        *self = merged;
        Ok(conflicts)
    }
}

/// The entries of all documents by key and shape. Among entries of one key and shape the last is kept. Equal
/// entries occur once.
fn ranked<'a>(all: &[&'a Document]) -> Vec<&'a Entry> {
    let rank = |entry: &'a Entry| (entry.subject(), &entry.found.date, entry.chosen.samples, entry);
    let mut entries: Vec<&Entry> = all.iter().flat_map(|document| &document.entries).collect();
    // Fast, because each document's entries are already sorted.
    entries.sort_by(|one, other| rank(one).cmp(&rank(other)));
    entries.dedup();
    entries
}

impl fmt::Display for MergeConflict {
    /// `rms_norm f16, cold-eager, throughput, rows 5: kept chunks of 8192 with warps 4 in 1200 ns
    /// (2026-11-20T12:00:00Z), dropped ...: the kept one is later`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kept.key)?;
        for (name, size) in &self.kept.shape {
            write!(f, ", {name} {size}")?;
        }
        for (entry, text) in [(&self.kept, ": kept"), (&self.dropped, ", dropped")] {
            write!(f, "{text} {}", entry.choice)?;
            for (place, (name, value)) in entry.parameters.iter().enumerate() {
                write!(f, "{}{name} {value}", if place == 0 { " with " } else { ", " })?;
            }
            let date = if entry.found.date.is_empty() { "no date" } else { &entry.found.date };
            write!(f, " in {} ns ({date})", entry.chosen.median_ns)?;
        }
        write!(f, ": {}", self.reason())
    }
}

/// The device and all aliases of a merge, or the index of a document of another device.
fn same_device(
    first: &Document,
    all: &[&Document],
) -> Result<(DeviceIdentity, Vec<String>), (usize, DeviceMismatch)> {
    let names = linked_names(first, all);
    let compare = |one: &Document, (index, other): (usize, &&Document)| {
        let name = &other.device.name;
        let alias = if names.contains(&**name) { core::slice::from_ref(name) } else { &[] };
        one.device.serves(alias, &other.device).map_err(|mismatch| (index, mismatch))
    };
    all.iter().enumerate().try_for_each(|other| compare(first, other))?;
    // Memory may be close to the first device's, and yet differ too much between two others.
    let memory = |document: &Document| document.device.memory_bytes;
    let least = all.iter().min_by_key(|document| memory(document));
    let most = all.iter().enumerate().max_by_key(|(_, document)| memory(document));
    least.zip(most).map_or(Ok(()), |(least, most)| compare(least, most))?;
    let device = all.iter().map(|document| &document.device).fold(&first.device, Ord::min);
    let aliases = names.into_iter().filter(|name| **name != device.name).map(str::to_owned);
    Ok((device.clone(), aliases.collect()))
}

/// The names and aliases of the first document and of all documents that are linked with it.
fn linked_names<'a>(first: &'a Document, all: &[&'a Document]) -> BTreeSet<&'a str> {
    let names_of = |document: &'a Document| {
        core::iter::once(&document.device.name).chain(&document.aliases).map(String::as_str)
    };
    let mut left = all.to_vec();
    let mut names: BTreeSet<&str> = names_of(first).collect();
    loop {
        let shares =
            |document: &mut &'a Document| names_of(document).any(|name| names.contains(name));
        let found: Vec<&Document> = left.extract_if(.., shares).collect();
        if found.is_empty() {
            return names;
        }
        names.extend(found.into_iter().flat_map(names_of));
    }
}
