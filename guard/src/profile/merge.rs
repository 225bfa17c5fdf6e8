//! Merges documents of one device, and compares two documents.

use core::cmp::Ordering;
use core::fmt;
use std::collections::BTreeSet;

use serde::Serialize;

use super::device::{DeviceIdentity, DeviceMismatch};
use super::document::Document;
use super::error::{MAX_ALIASES, ProfileError};
use super::model::{Entry, MAX_ENTRIES};

/// Two different entries for the same key and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeConflict {
    /// The entry in the merged document.
    pub kept: Entry,
    /// The other one.
    pub dropped: Entry,
}

/// Why one of two entries for the same key and shape is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MergeReason {
    /// It has the later date, or the only one.
    Date,
    /// The dates are the same, and it has more samples.
    Samples,
    /// Dates and samples are the same; one is kept by an order that does not depend on the files.
    Order,
    /// It was put in the other's place, whatever their dates and samples are.
    Replaced,
}

impl MergeConflict {
    /// Why [`Self::kept`] is kept.
    #[must_use]
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

/// A difference between two documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryDifference<'a> {
    /// Only the first document has the entry.
    OnlyFirst(&'a Entry),
    /// Only the second document has the entry.
    OnlySecond(&'a Entry),
    /// Choice, parameters or launches differ.
    Choice(&'a Entry, &'a Entry),
    /// The choice is the same; its times or those of the default differ.
    Times(&'a Entry, &'a Entry),
    /// Only how the entries were measured differs.
    Provenance(&'a Entry, &'a Entry),
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
    /// Of entries with the same key and shape the latest is kept; of the same date the one with most
    /// samples; else the greatest. The smallest of several device names becomes the document's, the
    /// others become aliases; of each version the latest is kept. So the result depends neither on the
    /// order of the documents nor on repetitions.
    ///
    /// Devices are the same if all their figures agree and their names are linked: by a name or
    /// alias that two documents share, directly or through other documents. Merged one by one, a
    /// document that is linked only through a later one is rejected.
    ///
    /// # Errors
    ///
    /// [`ProfileError::OtherDevice`], [`ProfileError::MergedEntries`] and
    /// [`ProfileError::MergedAliases`]; the document is then unchanged.
    pub fn merge_all(&mut self, others: &[Self]) -> Result<Vec<MergeConflict>, ProfileError> {
        let all: Vec<&Self> = core::iter::once(&*self).chain(others).collect();
        let (device, aliases) = same_device(self, &all)
            .map_err(|(document, mismatch)| ProfileError::OtherDevice { document, mismatch })?;
        if aliases.len() > MAX_ALIASES {
            return Err(ProfileError::MergedAliases { aliases: aliases.len() });
        }
        let ranked = ranked(&all);
        let subjects = || ranked.chunk_by(|one, other| one.subject() == other.subject());
        let entries = subjects().count();
        if entries > MAX_ENTRIES {
            return Err(ProfileError::MergedEntries { entries });
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
        *self = Self { device, aliases, environment, entries: merged };
        Ok(conflicts)
    }

    /// The differences between `self` and `other`, in the order of entries. Devices are not compared.
    pub fn diff<'a>(&'a self, other: &'a Self) -> Vec<EntryDifference<'a>> {
        let (mut first, mut second) =
            (self.entries.iter().peekable(), other.entries.iter().peekable());
        let mut differences = Vec::new();
        loop {
            let order = match (first.peek(), second.peek()) {
                (Some(one), Some(two)) => one.subject().cmp(&two.subject()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return differences,
            };
            let one = first.next_if(|_| order.is_le());
            let two = second.next_if(|_| order.is_ge());
            differences.extend(match (one, two) {
                (Some(one), Some(two)) => difference(one, two),
                (Some(one), None) => Some(EntryDifference::OnlyFirst(one)),
                (None, two) => two.map(EntryDifference::OnlySecond),
            });
        }
    }
}

fn difference<'a>(one: &'a Entry, two: &'a Entry) -> Option<EntryDifference<'a>> {
    let chosen = |entry: &'a Entry| (entry.choice, &entry.parameters, entry.launches);
    let times = |entry: &Entry| (entry.chosen, entry.default);
    if chosen(one) != chosen(two) {
        Some(EntryDifference::Choice(one, two))
    } else if times(one) != times(two) {
        Some(EntryDifference::Times(one, two))
    } else {
        (one != two).then_some(EntryDifference::Provenance(one, two))
    }
}

/// The entries of all documents by key and shape, of the same key and shape the one to keep last.
/// Equal entries occur once.
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
        f.write_str(match self.reason() {
            MergeReason::Date => ": the kept one is later",
            MergeReason::Samples => ": the kept one has more samples",
            MergeReason::Order => ": date and number of samples are the same",
            MergeReason::Replaced => ": the kept one replaces it",
        })
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
    // Each may have nearly the memory of the first, and yet not of another.
    let memory = |document: &Document| document.device.memory_bytes;
    let least = all.iter().min_by_key(|document| memory(document));
    let most = all.iter().enumerate().max_by_key(|(_, document)| memory(document));
    least.zip(most).map_or(Ok(()), |(least, most)| compare(least, most))?;
    let device = all.iter().map(|document| &document.device).fold(&first.device, Ord::min);
    let aliases = names.into_iter().filter(|name| **name != device.name).map(str::to_owned);
    Ok((device.clone(), aliases.collect()))
}

/// The names and aliases of the first document and of all that share one with it, directly or
/// through others.
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
