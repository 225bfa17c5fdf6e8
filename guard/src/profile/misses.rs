//! The log of shapes that no entry matched exactly: what to tune next.

use core::cmp::Ordering;
use core::sync::atomic::{self, AtomicU64};
use std::path::Path;

use parking_lot::Mutex;

use super::entry::Named;
use super::error::{ProfileError, StoreError};
use super::file::{Replacement, read, replace};
use super::key::Key;
use super::matching::MatchKind;
use super::shapes::{ParsedShapes, write_shapes};

/// A shape that was asked for and not found exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissedShape {
    /// The kernel. Out of a file it has no source.
    pub key: Key,
    /// The sizes.
    pub shape: Named,
    /// How often.
    pub seen: u64,
    /// What served instead, the last time.
    pub served: MatchKind,
}

/// Collects the shapes that were not found exactly, up to a number of them.
///
/// Recording never waits: while another thread records, or where the log is full of other shapes, a
/// miss is only counted as dropped.
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
    /// Sorted by key and sizes.
    shapes: Mutex<Vec<MissedShape>>,
    dropped: AtomicU64,
}

impl MissLog {
    /// A log of at most `capacity` shapes.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { capacity, shapes: Mutex::new(Vec::new()), dropped: AtomicU64::new(0) }
    }

    /// Records a miss; an exact match is none.
    ///
    /// A shape with a size that has no name, or that no file would take, is dropped.
    pub fn record(&self, key: &Key, names: &[&str], sizes: &[u64], served: MatchKind) {
        if served == MatchKind::Exact {
            return;
        }
        let recorded = match self.shapes.try_lock() {
            Some(mut shapes) => self.add(&mut shapes, key, names, sizes, served),
            None => false,
        };
        if !recorded {
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
    ) -> bool {
        let place = shapes.binary_search_by(|missed| missed.compare(key, names, sizes));
        match place {
            Ok(place) => {
                if let Some(missed) = shapes.get_mut(place) {
                    missed.seen = missed.seen.saturating_add(1);
                    missed.served = served;
                }
                true
            }
            Err(_) if shapes.len() >= self.capacity || names.len() != sizes.len() => false,
            Err(place) => {
                let named = names.iter().zip(sizes);
                let shape = named.map(|(name, size)| ((*name).to_owned(), *size)).collect();
                let missed = MissedShape { key: key.clone(), shape, seen: 1, served };
                let takes = missed.check().is_ok();
                if takes {
                    shapes.insert(place, missed);
                }
                takes
            }
        }
    }

    /// How many misses were not recorded.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(atomic::Ordering::Relaxed)
    }

    /// What was recorded since the last [`write`](Self::write), by key and sizes.
    #[must_use]
    pub fn snapshot(&self) -> Vec<MissedShape> {
        self.shapes.lock().clone()
    }

    /// Adds what was recorded to the file at `path` and empties the log, so that it may be called
    /// again and again; the answer is how many shapes the file has then.
    ///
    /// The sources of kernels are not written: what is to be tuned next is today's code. Where the
    /// file is full the shapes seen least go.
    ///
    /// # Errors
    ///
    /// As [`publish`](super::publish); then nothing is lost from the log.
    pub fn write(&self, path: &Path) -> Result<usize, StoreError> {
        let ours = core::mem::take(&mut *self.shapes.lock());
        let written = add_to_file(path, &ours);
        if written.is_err() {
            let mut shapes = self.shapes.lock();
            *shapes = combined(ours.into_iter().chain(shapes.drain(..)).collect());
        }
        written
    }

    /// Reads a file of shapes, also one written by hand; `None` where there is none.
    ///
    /// A shape needs `kernel`, `dtypes` and `shape`; `variant`, `policy`, `objective`, `seen` and
    /// `served` may be left out.
    ///
    /// # Errors
    ///
    /// As [`load`](super::load).
    pub fn read(path: &Path) -> Result<Option<ParsedShapes>, ProfileError> {
        read(path)?.map(|text| ParsedShapes::parse(&text)).transpose()
    }
}

impl MissedShape {
    /// How it is ordered against a key, names and sizes.
    fn compare(&self, key: &Key, names: &[&str], sizes: &[u64]) -> Ordering {
        let own_sizes = self.shape.iter().map(|(_, size)| size);
        let own_names = self.shape.iter().map(|(name, _)| name.as_str());
        self.key
            .cmp(key)
            .then_with(|| own_sizes.cmp(sizes))
            .then_with(|| own_names.cmp(names.iter().copied()))
    }

    fn order(&self, other: &Self) -> Ordering {
        let names: Vec<_> = other.shape.iter().map(|(name, _)| name.as_str()).collect();
        let sizes: Vec<_> = other.shape.iter().map(|(_, size)| *size).collect();
        self.compare(&other.key, &names, &sizes)
    }
}

fn add_to_file(path: &Path, ours: &[MissedShape]) -> Result<usize, StoreError> {
    let (shapes, _) = replace(path, |old| {
        let old = old.map(ParsedShapes::parse).transpose();
        let old = old.map_err(|error| StoreError::Existing { path: path.to_owned(), error })?;
        let ParsedShapes { mut shapes, faults } = old.unwrap_or_default();
        shapes.extend(ours.iter().cloned().map(without_source));
        let shapes = most_seen(combined(shapes));
        let text = write_shapes(&shapes);
        Ok(Replacement { text, keep_old: !faults.is_empty(), outcome: shapes.len() })
    })?;
    Ok(shapes)
}

fn without_source(mut missed: MissedShape) -> MissedShape {
    missed.key.source.clear();
    missed
}

/// Sorted, and of the same shapes one with the sum of both; the later one says what served.
pub(super) fn combined(mut shapes: Vec<MissedShape>) -> Vec<MissedShape> {
    shapes.sort_by(MissedShape::order);
    shapes.dedup_by(|later, earlier| {
        let same = later.key == earlier.key && later.shape == earlier.shape;
        if same {
            earlier.seen = earlier.seen.saturating_add(later.seen);
            earlier.served = later.served;
        }
        same
    });
    shapes
}

/// As many as a file takes, those seen most.
fn most_seen(mut shapes: Vec<MissedShape>) -> Vec<MissedShape> {
    if shapes.len() > MAX_SHAPES {
        shapes.sort_by_key(|missed| core::cmp::Reverse(missed.seen));
        shapes.truncate(MAX_SHAPES);
        shapes.sort_by(MissedShape::order);
    }
    shapes
}

/// Shapes that are kept in a file; a fraction of what is read, for people add theirs.
const MAX_SHAPES: usize = 50_000;
