//! Two documents of one device as one, and what tells them apart.

use core::cmp::Ordering;
use core::fmt;
use std::collections::BTreeSet;

use super::bounds::{MAX_ALIASES, MAX_ENTRIES};
use super::document::Document;
use super::entry::{Entry, Named, StoredChoice};
use super::identity::{DeviceIdentity, Mismatch};
use super::key::Key;

/// Two documents have different entries for the same shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What both are about.
    pub key: Key,
    /// The sizes.
    pub shape: Named,
    /// The one that stays.
    pub kept: Contender,
    /// The one that goes.
    pub dropped: Contender,
}

/// One side of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// How to plan it.
    pub choice: StoredChoice,
    /// Launch parameters.
    pub parameters: Named,
    /// The median time in nanoseconds.
    pub median_ns: u64,
    /// When it was found.
    pub date: String,
}

/// Why two documents do not merge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// They are of different devices.
    #[error("the profiles do not merge: {mismatch}")]
    OtherDevice {
        /// The document that is not like the others, from 0; the first is the one merged into.
        document: usize,
        /// What differs.
        mismatch: Mismatch,
    },
    /// Together they are too large.
    #[error(
        "the profiles have {entries} entries together, at most {MAX_ENTRIES} are taken: \
             split them by kernel"
    )]
    TooManyEntries {
        /// Entries of all, those of the same shape counted once.
        entries: usize,
    },
    /// Together they name too many devices.
    #[error(
        "the profiles have {aliases} aliases together, at most {MAX_ALIASES} are taken: \
             remove some"
    )]
    TooManyAliases {
        /// Aliases of all, equal ones counted once.
        aliases: usize,
    },
}

/// What tells two documents apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference<'a> {
    /// Only the first document has it.
    OnlyFirst(&'a Entry),
    /// Only the second document has it.
    OnlySecond(&'a Entry),
    /// Choice, parameters or launches differ.
    Choice(&'a Entry, &'a Entry),
    /// The choice is the same, its times or the default's differ.
    Times(&'a Entry, &'a Entry),
    /// Only how the entries were found differs.
    Provenance(&'a Entry, &'a Entry),
}

impl Document {
    /// Takes in the entries of another document of the same device, as [`Self::merge_all`].
    ///
    /// # Errors
    ///
    /// As [`MergeError`] says; then nothing changed.
    pub fn merge(&mut self, other: &Self) -> Result<Vec<Conflict>, MergeError> {
        self.merge_all(core::slice::from_ref(other))
    }

    /// Takes in the entries of other documents of the same device.
    ///
    /// Of entries about the same the latest one stays; of the same date the one with most samples;
    /// else the greatest one. Of several names the smallest becomes the device's and the others
    /// aliases; of versions in the environment the latest stays. So neither the order of the
    /// documents matters, nor how often each is there.
    ///
    /// Devices are the same where all their figures agree and their names are linked: by a name or
    /// alias that two documents share, or through others in between. Where documents of several
    /// names are merged one after the other, one that is linked only through a later one is refused;
    /// together none is.
    ///
    /// # Errors
    ///
    /// As [`MergeError`] says; then nothing changed.
    pub fn merge_all(&mut self, others: &[Self]) -> Result<Vec<Conflict>, MergeError> {
        let all: Vec<&Self> = core::iter::once(&*self).chain(others).collect();
        let (device, aliases) = same_device(self, &all)
            .map_err(|(document, mismatch)| MergeError::OtherDevice { document, mismatch })?;
        if aliases.len() > MAX_ALIASES {
            return Err(MergeError::TooManyAliases { aliases: aliases.len() });
        }
        let ranked = ranked(&all);
        let subjects = || ranked.chunk_by(|one, other| one.subject() == other.subject());
        let entries = subjects().count();
        if entries > MAX_ENTRIES {
            return Err(MergeError::TooManyEntries { entries });
        }
        let mut conflicts = Vec::new();
        let mut merged = Vec::with_capacity(entries);
        for contenders in subjects() {
            let Some((kept, dropped)) = contenders.split_last() else { continue };
            conflicts.extend(dropped.iter().map(|dropped| conflict(kept, dropped)));
            merged.push((*kept).clone());
        }
        let environment = self.environment.clone();
        let environment = others.iter().fold(environment, |one, two| one.latest(&two.environment));
        *self = Self { device, aliases, environment, entries: merged };
        Ok(conflicts)
    }

    /// What tells `self` from `other`, in the order of entries. Devices are not compared.
    pub fn diff<'a>(&'a self, other: &'a Self) -> Vec<Difference<'a>> {
        pairs(self, other).filter_map(|(one, two)| difference(one, two)).collect()
    }
}

fn difference<'a>(one: Option<&'a Entry>, two: Option<&'a Entry>) -> Option<Difference<'a>> {
    let (one, two) = match (one, two) {
        (Some(one), Some(two)) => (one, two),
        (Some(one), None) => return Some(Difference::OnlyFirst(one)),
        (None, two) => return two.map(Difference::OnlySecond),
    };
    if one == two {
        return None;
    }
    let chosen = |entry: &'a Entry| (entry.choice, &entry.parameters, entry.launches);
    let times = |entry: &Entry| (entry.chosen, entry.default);
    if chosen(one) != chosen(two) {
        return Some(Difference::Choice(one, two));
    }
    if times(one) != times(two) {
        return Some(Difference::Times(one, two));
    }
    Some(Difference::Provenance(one, two))
}

/// Entries of both, each beside the one about the same.
fn pairs<'a>(
    one: &'a Document,
    other: &'a Document,
) -> impl Iterator<Item = (Option<&'a Entry>, Option<&'a Entry>)> {
    let (mut first, mut second) = (one.entries.iter().peekable(), other.entries.iter().peekable());
    core::iter::from_fn(move || {
        let order = match (first.peek(), second.peek()) {
            (Some(one), Some(two)) => one.subject().cmp(&two.subject()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        Some(match order {
            Ordering::Less => (first.next(), None),
            Ordering::Equal => (first.next(), second.next()),
            Ordering::Greater => (None, second.next()),
        })
    })
}

/// The entries of all documents by what they are about, and of the same the one that stays last.
/// Equal ones stand there once.
fn ranked<'a>(all: &[&'a Document]) -> Vec<&'a Entry> {
    let rank = |entry: &'a Entry| (entry.subject(), &entry.found.date, entry.chosen.samples, entry);
    let mut entries: Vec<&Entry> = all.iter().flat_map(|document| &document.entries).collect();
    // Quick, because each document's are sorted by what they are about already.
    entries.sort_by(|one, other| rank(one).cmp(&rank(other)));
    entries.dedup();
    entries
}

fn conflict(kept: &Entry, dropped: &Entry) -> Conflict {
    Conflict {
        key: kept.key.clone(),
        shape: kept.shape.clone(),
        kept: Contender::from(kept),
        dropped: Contender::from(dropped),
    }
}

impl From<&Entry> for Contender {
    fn from(entry: &Entry) -> Self {
        Self {
            choice: entry.choice,
            parameters: entry.parameters.clone(),
            median_ns: entry.chosen.median_ns,
            date: entry.found.date.clone(),
        }
    }
}

impl fmt::Display for Contender {
    /// `chunks of 8192 with warps 4 in 1200 ns (2026-11-20T12:00:00Z)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.choice)?;
        for (place, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name} {value}", if place == 0 { " with " } else { ", " })?;
        }
        write!(f, " in {} ns ({})", self.median_ns, self.date)
    }
}

impl fmt::Display for Conflict {
    /// `rms_norm f16, cold-eager, throughput, rows 5: kept ..., dropped ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        for (name, size) in &self.shape {
            write!(f, ", {name} {size}")?;
        }
        write!(f, ": kept {}, dropped {}", self.kept, self.dropped)
    }
}

/// The device of a merge and all its aliases, or a document that is not of the first one's device.
fn same_device(
    first: &Document,
    all: &[&Document],
) -> Result<(DeviceIdentity, Vec<String>), (usize, Mismatch)> {
    let names = linked(first, all);
    let serves = |one: &Document, (place, other): (usize, &&Document)| {
        let name = &other.device.name;
        let alias = if names.contains(&**name) { core::slice::from_ref(name) } else { &[] };
        one.device.serves(alias, &other.device).map_err(|mismatch| (place, mismatch))
    };
    let memory = |document: &Document| document.device.memory_bytes;
    // Each may have nearly the memory of the first, and not of another.
    let least = all.iter().min_by_key(|document| memory(document));
    let most = all.iter().enumerate().max_by_key(|(_, document)| memory(document));
    all.iter().enumerate().try_for_each(|other| serves(first, other))?;
    least.zip(most).map_or(Ok(()), |(least, most)| serves(least, most))?;
    let device = all.iter().map(|document| &document.device).fold(&first.device, Ord::min);
    let aliases = names.into_iter().filter(|name| **name != device.name).map(str::to_owned);
    Ok((device.clone(), aliases.collect()))
}

/// Names and aliases of the first document and of all that share one with it, be it through others.
fn linked<'a>(first: &'a Document, all: &[&'a Document]) -> BTreeSet<&'a str> {
    let of = |document: &'a Document| {
        core::iter::once(&document.device.name).chain(&document.aliases).map(String::as_str)
    };
    let mut left = all.to_vec();
    let mut names: BTreeSet<&str> = of(first).collect();
    loop {
        let shares = |document: &mut &'a Document| of(document).any(|name| names.contains(name));
        let found: Vec<&Document> = left.extract_if(.., shares).collect();
        if found.is_empty() {
            return names;
        }
        names.extend(found.into_iter().flat_map(of));
    }
}
