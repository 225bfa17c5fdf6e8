//! Logs the shapes that had no exact match, and reads and writes them as a file of shapes to tune.

use core::cmp::Ordering;
use core::sync::atomic::{self, AtomicU64};
use std::path::Path;

use parking_lot::Mutex;
use serde::Deserialize;

use super::error::{FileFault, ProfileError, SCHEMA};
use super::matching::MatchKind;
use super::model::{
    EntryError, Key, MAX_ENTRIES, Named, Objective, Policy, check_key, check_shape,
};
use super::rows::{FirstRow, Ron, Rows, Schema, check_size, first_character, locate, read_rows};
use super::store::{Replacement, read, replace};

/// A shape that had no exact match.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissedShape {
    /// The kernel and its purpose. Read from a file it has no source.
    pub key: Key,
    /// The sizes.
    pub shape: Named,
    /// Number of lookups.
    pub seen: u64,
    /// How the last lookup was served.
    pub served: MatchKind,
}

/// Collects the shapes that had no exact match, up to a number of them.
///
/// Recording never waits: while another thread records, or when the log is full, a miss is only
/// counted as dropped.
///
/// ```
/// use gridguard::profile::{Key, MatchKind, MissLog};
///
/// let misses = MissLog::new(1000);
/// let key = Key { kernel: "rms_norm".into(), dtypes: "f16".into(), ..Key::default() };
/// misses.record(&key, &["rows", "columns"], &[5, 4096], MatchKind::Bucket);
/// misses.record(&key, &["rows", "columns"], &[5, 4096], MatchKind::Bucket);
/// assert_eq!(misses.snapshot()[0].seen, 2);
/// ```
#[derive(Debug)]
pub struct MissLog {
    capacity: usize,
    /// In the order of [`MissedShape::compare`].
    shapes: Mutex<Vec<MissedShape>>,
    dropped: AtomicU64,
}

impl MissLog {
    /// A log of at most `capacity` shapes.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { capacity, shapes: Mutex::new(Vec::new()), dropped: AtomicU64::new(0) }
    }

    /// Records a miss; an exact match is not recorded.
    ///
    /// A shape whose names and sizes differ in number, or that [`MissedShape::check`] rejects, is
    /// dropped.
    pub fn record(&self, key: &Key, names: &[&str], sizes: &[u64], served: MatchKind) {
        if served == MatchKind::Exact {
            return;
        }
        let recorded = self
            .shapes
            .try_lock()
            .and_then(|mut shapes| self.add(&mut shapes, key, names, sizes, served));
        if recorded.is_none() {
            self.dropped.fetch_add(1, atomic::Ordering::Relaxed);
        }
    }

    fn add(
        &self,
        shapes: &mut Vec<MissedShape>,
        key: &Key,
        names: &[&str],
        sizes: &[u64],
        served: MatchKind,
    ) -> Option<()> {
        match shapes.binary_search_by(|missed| missed.compare(key, names, sizes)) {
            Ok(place) => {
                let missed = shapes.get_mut(place)?;
                missed.seen = missed.seen.saturating_add(1);
                missed.served = served;
            }
            Err(_) if shapes.len() >= self.capacity || names.len() != sizes.len() => return None,
            Err(place) => {
                let named = names.iter().zip(sizes);
                let shape = named.map(|(name, size)| ((*name).to_owned(), *size)).collect();
                let missed = MissedShape { key: key.clone(), shape, seen: 1, served };
                missed.check().ok()?;
                shapes.insert(place, missed);
            }
        }
        Some(())
    }

    /// Number of misses that were not recorded.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(atomic::Ordering::Relaxed)
    }

    /// What was recorded since the last [`write`](Self::write), by key and sizes.
    #[must_use]
    pub fn snapshot(&self) -> Vec<MissedShape> {
        self.shapes.lock().clone()
    }

    /// Adds what was recorded to the file at `path`, empties the log, and returns the number of
    /// shapes in the file. It can be called repeatedly.
    ///
    /// The sources of kernels are not written, because the next tuning uses the current code. If the
    /// file is full, the shapes seen least are removed.
    ///
    /// # Errors
    ///
    /// As [`publish`](super::publish); the log then keeps what it has.
    pub fn write(&self, path: &Path) -> Result<usize, ProfileError> {
        let recorded = core::mem::take(&mut *self.shapes.lock());
        let written = add_to_file(path, &recorded);
        if written.is_err() {
            let mut shapes = self.shapes.lock();
            *shapes = combined(recorded.into_iter().chain(shapes.drain(..)).collect());
        }
        written
    }

    /// Reads a file of shapes, as written by [`write`](Self::write) or by hand; `None` if there is no
    /// file.
    ///
    /// A shape needs `kernel`, `dtypes` and `shape`; `variant`, `policy`, `objective`, `seen` and
    /// `served` are optional.
    ///
    /// # Errors
    ///
    /// As [`load`](super::load).
    pub fn read(path: &Path) -> Result<Option<ParsedShapes>, ProfileError> {
        read(path)?.map(|text| ParsedShapes::parse(&text)).transpose()
    }
}

impl MissedShape {
    /// Checks names and sizes against the limits of a file.
    ///
    /// # Errors
    ///
    /// The first limit that is exceeded.
    pub fn check(&self) -> Result<(), EntryError> {
        check_key(&self.key)?;
        check_shape(&self.shape)
    }

    /// Compares by key, then sizes, then their names; `seen` and `served` do not count.
    fn compare(&self, key: &Key, names: &[&str], sizes: &[u64]) -> Ordering {
        let own_sizes = self.shape.iter().map(|(_, size)| size);
        let own_names = self.shape.iter().map(|(name, _)| name.as_str());
        self.key
            .cmp(key)
            .then_with(|| own_sizes.cmp(sizes))
            .then_with(|| own_names.cmp(names.iter().copied()))
    }

    fn order(&self, other: &Self) -> Ordering {
        let (names, sizes): (Vec<_>, Vec<_>) =
            other.shape.iter().map(|(name, size)| (name.as_str(), *size)).unzip();
        self.compare(&other.key, &names, &sizes)
    }
}

fn add_to_file(path: &Path, recorded: &[MissedShape]) -> Result<usize, ProfileError> {
    let (shapes, _) = replace(path, |old| {
        let old = old.map(ParsedShapes::parse).transpose()?;
        let ParsedShapes { mut shapes, faults } = old.unwrap_or_default();
        shapes.extend(recorded.iter().cloned().map(|mut missed| {
            missed.key.source.clear();
            missed
        }));
        let mut shapes = combined(shapes);
        if shapes.len() > MAX_SHAPES {
            shapes.sort_by_key(|missed| core::cmp::Reverse(missed.seen));
            shapes.truncate(MAX_SHAPES);
            shapes.sort_by(MissedShape::order);
        }
        let outcome = shapes.len();
        let text = ParsedShapes { shapes, faults: Vec::new() }.to_ron();
        Ok(Replacement { text, keep_old: !faults.is_empty(), outcome })
    })?;
    Ok(shapes)
}

/// Sorts shapes, and combines equal ones: `seen` is added up, and `served` is that of the last.
fn combined(mut shapes: Vec<MissedShape>) -> Vec<MissedShape> {
    shapes.sort_by(MissedShape::order);
    shapes.dedup_by(|later, earlier| {
        let is_same = later.key == earlier.key && later.shape == earlier.shape;
        if is_same {
            earlier.seen = earlier.seen.saturating_add(later.seen);
            earlier.served = later.served;
        }
        is_same
    });
    shapes
}

/// The result of reading a file of shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedShapes {
    /// The valid shapes, by key and sizes, each once.
    pub shapes: Vec<MissedShape>,
    /// What is wrong with the others, in the file's order.
    pub faults: Vec<FileFault>,
}

impl ParsedShapes {
    /// Parses a file, as [`MissLog::read`].
    ///
    /// # Errors
    ///
    /// As [`Document::parse`](super::Document::parse).
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        check_size(text)?;
        let whole = match ron::from_str::<File<ShapeRow>>(text) {
            Ok(file) if file.shapes.len() > MAX_ENTRIES => {
                return Err(ProfileError::TooManyEntries);
            }
            Ok(file) => {
                let shapes: Vec<_> = file.shapes.into_iter().map(MissedShape::from).collect();
                if shapes.iter().all(|missed| missed.check().is_ok()) {
                    return Ok(Self { shapes: combined(shapes), faults: Vec::new() });
                }
                None
            }
            Err(error) => Some(error),
        };
        let rows = read_rows::<File<FirstRow>, ShapeRow>(text, whole)?;
        let Rows { header: _, good, mut bad } = rows;
        let mut shapes = Vec::with_capacity(good.len());
        for (offset, row) in good {
            let missed = MissedShape::from(row);
            match missed.check() {
                Ok(()) => shapes.push(missed),
                Err(error) => bad.push((offset, first_character(error))),
            }
        }
        Ok(Self { shapes: combined(shapes), faults: locate(text, bad) })
    }

    /// The valid shapes as a file's text.
    #[must_use]
    pub fn to_ron(&self) -> String {
        let row = |MissedShape { key, shape, seen, served }: &MissedShape| {
            let Key { kernel, source: _, variant, dtypes, policy, objective } = key;
            let (kernel, variant, dtypes) = (Ron(kernel), Ron(variant), Ron(dtypes));
            let (policy, objective, shape) = (Ron(policy), Ron(objective), Ron(shape));
            format!(
                "        (kernel: {kernel}, variant: {variant}, dtypes: {dtypes}, \
                 policy: {policy}, objective: {objective}, shape: {shape}, seen: {seen}, \
                 served: {served}),\n"
            )
        };
        let rows: String = self.shapes.iter().map(row).collect();
        format!("(\n    schema: {SCHEMA},\n    shapes: [\n{rows}    ],\n)\n")
    }
}

/// A file with rows of type `R`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Shapes")]
struct File<R> {
    #[serde(rename = "schema")]
    _schema: Schema,
    shapes: Vec<R>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Shape")]
struct ShapeRow {
    kernel: String,
    #[serde(default)]
    variant: String,
    dtypes: String,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    objective: Objective,
    shape: Named,
    #[serde(default = "once")]
    seen: u64,
    #[serde(default)]
    served: MatchKind,
}

/// `seen` of a shape written by hand.
const fn once() -> u64 {
    1
}

impl From<ShapeRow> for MissedShape {
    fn from(row: ShapeRow) -> Self {
        let ShapeRow { kernel, variant, dtypes, policy, objective, shape, seen, served } = row;
        let key = Key { kernel, source: String::new(), variant, dtypes, policy, objective };
        Self { key, shape, seen, served }
    }
}

/// The most shapes that are written to a file: fewer than are read, so that some can be added by
/// hand.
const MAX_SHAPES: usize = 50_000;
