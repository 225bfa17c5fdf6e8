//! A log of shapes that neither an entry nor a decision list decides, and its file of shapes to tune.

use core::cmp::{Ordering, Reverse};
use core::sync::atomic::{self, AtomicU64};
use std::path::Path;

use parking_lot::Mutex;
use serde::Deserialize;

use super::error::{FileFault, ProfileError, SCHEMA};
use super::matching::MatchKind;
use super::model::{Key, Named, Objective, Policy, check_key, check_shape};
use super::rows::{FirstRow, Ron, Row, Rows, Schema, locate, read_rows};
use super::store::{Published, read, replace};

/// A shape that had no exact match.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissedShape {
    /// The kernel and its purpose. In a file it has no source.
    pub key: Key,
    /// The sizes.
    pub shape: Named,
    /// Number of lookups.
    pub seen: u64,
    /// The kind of match of the last lookup.
    pub served: MatchKind,
}

/// A bounded log of shapes without an exact match.
///
/// Recording never waits. While another thread records, or if the log is full, a miss is only counted as
/// dropped.
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
    /// Sorted by [`MissedShape::compare`].
    shapes: Mutex<Vec<MissedShape>>,
    dropped: AtomicU64,
}

impl MissLog {
    /// A log of at most `capacity` shapes.
    pub const fn new(capacity: usize) -> Self {
        Self { capacity, shapes: Mutex::new(Vec::new()), dropped: AtomicU64::new(0) }
    }

    /// Records a miss; an exact match and the row of a decision list are none.
    ///
    /// A shape is dropped if its numbers of names and sizes differ, or if a name is too long.
    pub fn record(&self, key: &Key, names: &[&str], sizes: &[u64], served: MatchKind) {
        if matches!(served, MatchKind::Exact | MatchKind::Row) {
            return;
        }
        let recorded = self.shapes.try_lock().and_then(|mut shapes| {
            match shapes.binary_search_by(|missed| missed.compare(key, names, sizes)) {
                Ok(place) => {
                    let missed = shapes.get_mut(place)?;
                    missed.seen = missed.seen.saturating_add(1);
                    missed.served = served;
                }
                Err(_) if shapes.len() >= self.capacity || names.len() != sizes.len() => {
                    return None;
                }
                Err(place) => {
                    let names = names.iter().map(|name| (*name).to_owned());
                    let shape = names.zip(sizes.iter().copied()).collect();
                    let missed = MissedShape { key: key.clone(), shape, seen: 1, served };
                    missed.check().ok()?;
                    shapes.insert(place, missed);
                }
            }
            Some(())
        });
        if recorded.is_none() {
            self.dropped.fetch_add(1, atomic::Ordering::Relaxed);
        }
    }

    /// Number of misses that were not recorded.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(atomic::Ordering::Relaxed)
    }

    /// The shapes recorded since the last [`write`](Self::write), by key and sizes.
    pub fn snapshot(&self) -> Vec<MissedShape> {
        self.shapes.lock().clone()
    }

    /// Adds the recorded shapes to the file at `path`, and empties the log.
    ///
    /// The sources of kernels are not written, because the next tuning uses the current code. If the file is
    /// full, the least seen shapes are removed.
    ///
    /// # Errors
    ///
    /// As [`publish`](super::publish). The log then keeps its shapes, up to its capacity.
    pub fn write(&self, path: &Path) -> Result<Published<()>, ProfileError> {
        let recorded = core::mem::take(&mut *self.shapes.lock());
        let written = add_to_file(path, &recorded);
        if written.is_err() {
            let mut shapes = self.shapes.lock();
            let all = combined(recorded.into_iter().chain(shapes.drain(..)).collect());
            // Other threads may have filled the log.
            let (kept, removed) = most_seen(all, self.capacity);
            *shapes = kept;
            let dropped = removed.iter().map(|missed| missed.seen).sum();
            self.dropped.fetch_add(dropped, atomic::Ordering::Relaxed);
        }
        written
    }

    /// Reads a file of shapes, written by [`write`](Self::write) or by hand. `None` if there is no file.
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
    pub fn check(&self) -> Result<(), ProfileError> {
        check_key(&self.key)?;
        check_shape(&self.shape)
    }

    /// Compares by key, then by the names and sizes of the shape.
    fn compare<'a>(&'a self, key: &Key, names: &[&'a str], sizes: &[u64]) -> Ordering {
        let own = self.shape.iter().map(|(name, size)| (name.as_str(), *size));
        let other = names.iter().copied().zip(sizes.iter().copied());
        self.key.cmp(key).then_with(|| own.cmp(other))
    }
}

fn add_to_file(path: &Path, recorded: &[MissedShape]) -> Result<Published<()>, ProfileError> {
    replace(path, |old| {
        let old = old.map(ParsedShapes::parse).transpose()?;
        let ParsedShapes { mut shapes, faults } = old.unwrap_or_default();
        shapes.extend(recorded.iter().cloned().map(|mut missed| {
            missed.key.source.clear();
            missed
        }));
        let (shapes, _) = most_seen(combined(shapes), MAX_SHAPES);
        let written = Published { entries: shapes.len(), faults, ..Published::default() };
        Ok((ParsedShapes { shapes, faults: Vec::new() }.to_ron(), written))
    })
}

/// Sorts shapes, and combines equal shapes: adds up `seen`, and keeps the last `served`.
fn combined(mut shapes: Vec<MissedShape>) -> Vec<MissedShape> {
    shapes.sort_by(|one, other| (&one.key, &one.shape).cmp(&(&other.key, &other.shape)));
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

/// The `count` most seen shapes, and the others.
fn most_seen(mut shapes: Vec<MissedShape>, count: usize) -> (Vec<MissedShape>, Vec<MissedShape>) {
    if shapes.len() <= count {
        return (shapes, Vec::new());
    }
    shapes.sort_by_key(|missed| Reverse(missed.seen));
    let others = shapes.split_off(count);
    shapes.sort();
    (shapes, others)
}

/// The result of reading a file of shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedShapes {
    /// The valid shapes, by key and sizes, each once.
    pub shapes: Vec<MissedShape>,
    /// The faults of the other shapes, in the file's order.
    pub faults: Vec<FileFault>,
}

impl ParsedShapes {
    /// Parses a file, as [`MissLog::read`].
    ///
    /// # Errors
    ///
    /// As [`Document::parse`](super::Document::parse).
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let Rows { header: File { .. }, good, bad } = read_rows::<_, ShapeRow>(text)?;
        let shapes = good.into_iter().map(|(_, missed)| missed).collect();
        Ok(Self { shapes: combined(shapes), faults: locate(text, bad) })
    }

    /// The shapes and faults of several files.
    #[must_use]
    pub fn merged(files: Vec<Self>) -> Self {
        let (mut shapes, mut faults) = (Vec::new(), Vec::new());
        for mut file in files {
            shapes.append(&mut file.shapes);
            faults.append(&mut file.faults);
        }
        Self { shapes: combined(shapes), faults }
    }

    /// The valid shapes as a file's text.
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

/// A file without its rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Shapes")]
struct File {
    #[serde(rename = "schema")]
    _schema: Schema<SCHEMA>,
    #[serde(rename = "shapes")]
    _shapes: Vec<FirstRow>,
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

impl Row for ShapeRow {
    type Item = MissedShape;

    fn checked(self) -> Result<MissedShape, ProfileError> {
        let Self { kernel, variant, dtypes, policy, objective, shape, seen, served } = self;
        let key = Key { kernel, source: String::new(), variant, dtypes, policy, objective };
        let missed = MissedShape { key, shape, seen, served };
        missed.check().map(|()| missed)
    }
}

/// The most shapes that are written to a file. More can be read, so that shapes can be added by hand.
const MAX_SHAPES: usize = 50_000;
