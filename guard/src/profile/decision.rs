//! Decision lists: a few choices for all shapes of a key, also for shapes that nobody measured.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::error::ProfileError;
use super::model::{
    Entry, Key, Named, Objective, Policy, StoredChoice, check_key, check_length, check_named,
    check_shape,
};
use super::rows::Ron;

/// Sizes by name, each with its least and its largest value.
pub type SizeRanges = Vec<(String, (u64, u64))>;

/// The choices of a key: the first row whose ranges contain a shape's sizes decides.
///
/// A person can read and change the rows in the file. Each choice was measured for an entry of the key or is the
/// planner's default, and no row contradicts an entry: see [`Document::decide`](super::Document::decide).
///
/// ```
/// use gridguard::profile::{DecisionList, DecisionRow, Key, StoredChoice};
///
/// let row = |when, choice| DecisionRow { when, choice, parameters: vec![] };
/// let list = DecisionList {
///     key: Key::default(),
///     within: vec![("rows".into(), (1000, 100_000)), ("columns".into(), (64, 8192))],
///     rows: vec![
///         row(vec![("columns".into(), (64, 512))], StoredChoice::Whole),
///         row(vec![], StoredChoice::Automatic),
///     ],
/// };
/// assert_eq!(list.row(&[5000, 512]), Some(0));
/// assert_eq!(list.row(&[5000, 513]), Some(1));
/// assert_eq!(list.row(&[5000, 8193]), None, "beyond what was measured");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DecisionList {
    /// The key of the entries.
    pub key: Key,
    /// All sizes of a shape, in the order of the kernel. The list decides no other shapes.
    pub within: SizeRanges,
    /// The rows, in the order in which they are tried.
    pub rows: Vec<DecisionRow>,
}

/// A row of a [`DecisionList`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRow {
    /// The sizes for which the row decides; empty for all.
    #[serde(default)]
    pub when: SizeRanges,
    /// The choice.
    pub choice: StoredChoice,
    /// The kernel's launch parameters; none for the planner's default.
    #[serde(default)]
    pub parameters: Named,
}

impl DecisionList {
    /// The index of the row that decides these sizes, which are in the order of [`Self::within`].
    pub fn row(&self, sizes: &[u64]) -> Option<usize> {
        let is_inside =
            |(size, (_, (low, high))): (&u64, &(_, (u64, u64)))| (*low..=*high).contains(size);
        if sizes.len() != self.within.len() || !sizes.iter().zip(&self.within).all(is_inside) {
            return None;
        }
        let size_of = |name: &str| sizes.get(self.place(name)?);
        self.rows.iter().position(|row| {
            row.when.iter().all(|(name, (low, high))| {
                size_of(name).is_some_and(|size| (*low..=*high).contains(size))
            })
        })
    }

    /// The index of the row that decides a shape, whose sizes must have the names of the list.
    #[must_use]
    pub fn row_of(&self, shape: &Named) -> Option<usize> {
        let sizes: Vec<u64> = shape.iter().map(|(_, size)| *size).collect();
        let mut names = shape.iter().zip(&self.within);
        self.row(&sizes).filter(|_| names.all(|((name, _), (other, _))| name == other))
    }

    /// Whether the list decides all shapes that `other` decides.
    #[must_use]
    pub fn reaches(&self, other: &Self) -> bool {
        let mut pairs = self.within.iter().zip(&other.within);
        self.within.len() == other.within.len()
            && pairs.all(|((name, (low, high)), (other, (least, most)))| {
                name == other && low <= least && most <= high
            })
    }

    /// The place of a size among the sizes of a shape.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.within.iter().position(|(other, _)| other == name)
    }

    /// Checks the list alone.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        let Self { key, within, rows } = self;
        check_key(key)?;
        check_length("source", &key.source)?;
        check_ranges(within)?;
        check_shape(&within.iter().map(|(name, (low, _))| (name.clone(), *low)).collect())?;
        if rows.is_empty() || rows.len() > MAX_ROWS {
            let count = rows.len();
            return Err(
                self.error(format_args!("it has {count} rows, the limits are 1 and {MAX_ROWS}"))
            );
        }
        for (place, row) in rows.iter().enumerate() {
            check_ranges(&row.when)?;
            check_named("parameters", &row.parameters)?;
            if let Some((name, _)) = row.when.iter().find(|(name, _)| self.place(name).is_none()) {
                return Err(self.row_error(place, format_args!("it has no size {name:?}")));
            }
        }
        Ok(())
    }

    /// Checks that each choice was measured for an entry, and that no row contradicts an entry. `entries` are all
    /// entries of the key.
    pub(super) fn check_entries(&self, entries: &[Entry]) -> Result<(), ProfileError> {
        for (place, row) in self.rows.iter().enumerate() {
            if !row.is_default() && !entries.iter().any(|entry| row.is_choice_of(entry)) {
                return Err(
                    self.row_error(place, "no entry of the key measured its choice: tune it")
                );
            }
        }
        entries.iter().try_for_each(|entry| self.check_entry(entry))
    }

    /// Checks that the row that decides the shape of an entry of the key has its choice.
    pub(super) fn check_entry(&self, entry: &Entry) -> Result<(), ProfileError> {
        let Some(place) = self.row_of(&entry.shape) else { return Ok(()) };
        match self.rows.get(place) {
            Some(row) if !row.serves(entry) => {
                let shape = Ron(&entry.shape);
                let what =
                    format_args!("it contradicts the entry of {shape}: correct it, or tune again");
                Err(self.row_error(place, what))
            }
            _ => Ok(()),
        }
    }

    fn row_error(&self, place: usize, what: impl fmt::Display) -> ProfileError {
        self.error(format_args!("row {}: {what}", place + 1))
    }

    fn error(&self, what: impl fmt::Display) -> ProfileError {
        ProfileError::decision(format!("decision list of {}: {what}", self.key))
    }
}

impl DecisionRow {
    /// Whether the row decides for the planner's default.
    pub fn is_default(&self) -> bool {
        self.choice == StoredChoice::Automatic && self.parameters.is_empty()
    }

    pub(super) fn is_choice_of(&self, entry: &Entry) -> bool {
        (self.choice, &self.parameters) == (entry.choice, &entry.parameters)
    }

    /// Whether the row's choice is the entry's, or the default, and the entry does not beat that.
    fn serves(&self, entry: &Entry) -> bool {
        self.is_choice_of(entry) || (self.is_default() && entry.keeps_default())
    }
}

fn check_ranges(ranges: &SizeRanges) -> Result<(), ProfileError> {
    check_named("ranges", &ranges.iter().map(|(name, (_, high))| (name.clone(), *high)).collect())?;
    match ranges.iter().find(|(_, (low, high))| low > high || *high > MAX_SIZE) {
        Some((name, (low, high))) => Err(ProfileError::decision(format!(
            "the range of {name} is {low} to {high}: give the least first, and at most 2^40"
        ))),
        None => Ok(()),
    }
}

impl fmt::Display for DecisionList {
    /// As in the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, within, rows } = self;
        let key = Ron(key).to_string();
        let key = key.strip_suffix(')').unwrap_or(&key);
        writeln!(f, "        {key},\n         within: {}, rows: [", Ron(within))?;
        for row in rows {
            writeln!(f, "            {},", Ron(row))?;
        }
        f.write_str("         ]),\n")
    }
}

/// A list as in a file, where its key is not nested.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "DecisionList")]
pub(super) struct ListRow {
    kernel: String,
    source: String,
    #[serde(default)]
    variant: String,
    dtypes: String,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    objective: Objective,
    within: SizeRanges,
    rows: Vec<DecisionRow>,
}

impl From<ListRow> for DecisionList {
    fn from(row: ListRow) -> Self {
        let ListRow { kernel, source, variant, dtypes, policy, objective, within, rows } = row;
        Self { key: Key { kernel, source, variant, dtypes, policy, objective }, within, rows }
    }
}

/// The most rows of a list. A person reads a few; the limit keeps the check of a file linear.
pub(super) const MAX_ROWS: usize = 64;
/// The largest size in a range, 2^40: no launch has more items, and larger numbers are mistakes.
pub(super) const MAX_SIZE: u64 = 1 << 40;
