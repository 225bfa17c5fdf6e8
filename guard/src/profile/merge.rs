//! Two documents of one device as one, and what tells them apart.

use core::cmp::Ordering;
use core::fmt;

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
    #[error("the profiles do not merge: {0}")]
    OtherDevice(Mismatch),
    /// Together they are too large.
    #[error(
        "the profiles have {entries} entries together, at most {MAX_ENTRIES} are taken: \
             split them by kernel"
    )]
    TooManyEntries {
        /// Entries of both, those of the same shape counted once.
        entries: usize,
    },
    /// Together they name too many devices.
    #[error(
        "the profiles have {aliases} aliases together, at most {MAX_ALIASES} are taken: \
             remove some"
    )]
    TooManyAliases {
        /// Aliases of both, equal ones counted once.
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
    /// Takes in the entries of another document of the same device.
    ///
    /// Of two entries about the same the later one stays; of the same date the one with more
    /// samples; else the greater one. So the order in which documents merge does not matter, nor
    /// how often. Of two names the smaller becomes the device's and the other an alias; of two
    /// versions in the environment the later one stays.
    ///
    /// # Errors
    ///
    /// As [`MergeError`] says; then nothing changed.
    pub fn merge(&mut self, other: &Self) -> Result<Vec<Conflict>, MergeError> {
        let (device, mut aliases) = same_device(self, other).map_err(MergeError::OtherDevice)?;
        aliases.sort();
        aliases.dedup();
        if aliases.len() > MAX_ALIASES {
            return Err(MergeError::TooManyAliases { aliases: aliases.len() });
        }
        let entries = pairs(self, other).count();
        if entries > MAX_ENTRIES {
            return Err(MergeError::TooManyEntries { entries });
        }
        let mut conflicts = Vec::new();
        let merged = pairs(self, other).filter_map(|pair| match pair {
            (Some(one), Some(two)) => Some(winner(one, two, &mut conflicts).clone()),
            (one, two) => one.or(two).cloned(),
        });
        self.entries = merged.collect();
        self.device = device;
        self.aliases = aliases;
        self.environment = self.environment.latest(&other.environment);
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

fn winner<'a>(one: &'a Entry, two: &'a Entry, conflicts: &mut Vec<Conflict>) -> &'a Entry {
    let rank = |entry: &'a Entry| (&entry.found.date, entry.chosen.samples, entry);
    let (kept, dropped) = if rank(one) >= rank(two) { (one, two) } else { (two, one) };
    if kept != dropped {
        conflicts.push(Conflict {
            key: kept.key.clone(),
            shape: kept.shape.clone(),
            kept: Contender::from(kept),
            dropped: Contender::from(dropped),
        });
    }
    kept
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

/// The device of a merge, and all its aliases.
fn same_device(
    one: &Document,
    other: &Document,
) -> Result<(DeviceIdentity, Vec<String>), Mismatch> {
    let aliased = one.device.name == other.device.name
        || one.aliases.contains(&other.device.name)
        || other.aliases.contains(&one.device.name);
    let names = if aliased { core::slice::from_ref(&other.device.name) } else { &[] };
    one.device.serves(names, &other.device)?;
    let device = (&one.device).min(&other.device);
    let names = [&one.device.name, &other.device.name];
    let all = one.aliases.iter().chain(&other.aliases).chain(names);
    let aliases = all.filter(|name| **name != device.name).cloned().collect();
    Ok((device.clone(), aliases))
}
