//! The tuned shapes of one key, and which is nearest to a shape.

use core::hash::{BuildHasher, Hasher};
use core::num::NonZeroU32;

use super::bounds::MAX_SIZES;
use super::entry::Named;
use super::hash::FoldedBuilder;
use super::layers::Layer;
use super::logarithm::{log2, millioctaves};
use super::matching::{Match, Reason};

/// Shapes in their order, row by row.
#[derive(Debug)]
pub(super) struct Table {
    names: Vec<String>,
    /// The sizes of all rows, one after the other.
    sizes: Vec<u64>,
    /// Their logarithms.
    logs: Vec<u32>,
    rows: Vec<Row>,
    /// Rows by the hash of their sizes, each in the first free place from there on; at least as many
    /// places are free.
    slots: Vec<Option<NonZeroU32>>,
    hasher: FoldedBuilder,
    /// The least and the largest bucket of each size.
    spans: Vec<(u32, u32)>,
}

/// The entry of a row, and what an answer says of it: beside each other, for the entry itself is
/// seldom in the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) layer: Layer,
    pub(super) degraded: bool,
    pub(super) entry: usize,
}

/// How good a row is: less is better.
type Rank = (bool, u32, Layer, usize);

impl Table {
    /// A table of shapes with the names of `shape`.
    pub(super) fn new(shape: &Named) -> Self {
        let names: Vec<String> = shape.iter().map(|(name, _)| name.clone()).collect();
        let spans = vec![(u32::MAX, 0); names.len()];
        let (sizes, logs, rows, slots) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { names, sizes, logs, rows, slots, hasher: FoldedBuilder::default(), spans }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether `shape` names the same sizes.
    pub(super) fn takes(&self, shape: &Named) -> bool {
        self.names.iter().eq(shape.iter().map(|(name, _)| name))
    }

    /// Adds a shape behind all that are there. Shapes come sorted, and of equal ones the highest
    /// layer's first, which alone is kept.
    pub(super) fn push(&mut self, shape: &Named, row: Row) {
        let sizes = shape.iter().map(|(_, size)| *size);
        let last = self.rows.len().checked_sub(1);
        if last.is_some_and(|last| self.row(last).iter().copied().eq(sizes.clone())) {
            return;
        }
        self.rows.push(row);
        for (size, span) in sizes.zip(&mut self.spans) {
            let bucket = bucket(size);
            *span = (span.0.min(bucket), span.1.max(bucket));
            self.sizes.push(size);
            self.logs.push(log2(size));
        }
    }

    /// Makes the rows findable, once all are there.
    pub(super) fn index(&mut self) {
        let places = (2 * self.rows.len()).next_power_of_two();
        self.slots = vec![None; places];
        for row in 0..self.rows.len() {
            let mut place = self.place(self.row(row));
            while self.slots.get(place).is_some_and(Option::is_some) {
                place = (place + 1) & (places - 1);
            }
            let number = u32::try_from(row + 1).ok().and_then(NonZeroU32::new);
            self.slots.get_mut(place).into_iter().for_each(|slot| *slot = number);
        }
    }

    /// The best row for `sizes`, and how it matches.
    pub(super) fn find(&self, sizes: &[u64]) -> (Match, Option<&Row>) {
        if let Some(row) = self.exact(sizes) {
            return (Match::Exact, self.rows.get(row));
        }
        if sizes.len() != self.names.len() {
            let (expected, given) = (self.names.len(), sizes.len());
            return (Match::Default(Reason::SizeCount { expected, given }), None);
        }
        match self.out_of_range(sizes) {
            Some(reason) => (Match::Default(reason), None),
            None => self.nearest(sizes),
        }
    }

    #[inline]
    fn exact(&self, sizes: &[u64]) -> Option<usize> {
        let mut place = self.place(sizes);
        // Half of the places are free, so this ends.
        while let Some(number) = *self.slots.get(place)? {
            let row = usize::try_from(number.get()).ok()? - 1;
            if self.row(row) == sizes {
                return Some(row);
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
        None
    }

    #[inline]
    fn place(&self, sizes: &[u64]) -> usize {
        let mut hasher = self.hasher.build_hasher();
        sizes.iter().for_each(|size| hasher.write_u64(*size));
        let mask = u64::try_from(self.slots.len().saturating_sub(1)).unwrap_or(0);
        usize::try_from(hasher.finish() & mask).unwrap_or(0)
    }

    fn out_of_range(&self, sizes: &[u64]) -> Option<Reason> {
        if sizes.first() == Some(&0) {
            return Some(Reason::ZeroSize);
        }
        let outside =
            |(size, (least, most)): (&u64, &(u32, u32))| !(*least..=*most).contains(&bucket(*size));
        let size = sizes.iter().zip(&self.spans).position(outside)?;
        Some(Reason::OutOfRange { size })
    }

    /// The best row within an octave of each size.
    fn nearest(&self, sizes: &[u64]) -> (Match, Option<&Row>) {
        let none = (Match::Default(Reason::NoNeighbour), None);
        let Some(&first) = sizes.first() else {
            return none;
        };
        let mut logs = [0; MAX_SIZES];
        for (log, size) in logs.iter_mut().zip(sizes) {
            *log = log2(*size);
        }
        let logs = logs.get(..sizes.len()).unwrap_or_default();
        // Rows are sorted by their first size, so those within an octave of it lie together.
        let begin = self.first_row(|row| row.first().is_some_and(|size| *size < first.div_ceil(2)));
        let near = |row: &usize| self.row(*row).first().is_some_and(|size| within(*size, first));
        let ranks = (begin..self.rows.len()).take_while(near);
        let best = ranks.filter_map(|row| self.rank(row, sizes, logs)).min();
        best.map_or(none, |(other_bucket, distance, _, row)| {
            let neighbour = Match::Neighbour { distance_millioctaves: millioctaves(distance) };
            let matched = if other_bucket { neighbour } else { Match::Bucket };
            (matched, self.rows.get(row))
        })
    }

    fn rank(&self, row: usize, sizes: &[u64], logs: &[u32]) -> Option<Rank> {
        let tuned = self.row(row);
        if !tuned.iter().zip(sizes).all(|(tuned, size)| within(*tuned, *size)) {
            return None;
        }
        let width = self.names.len();
        let tuned_logs = self.logs.get(row * width..(row + 1) * width)?;
        let distance = tuned_logs.iter().zip(logs).map(|(one, other)| one.abs_diff(*other)).sum();
        let same = tuned.iter().zip(sizes).all(|(one, other)| bucket(*one) == bucket(*other));
        Some((!same, distance, self.rows.get(row)?.layer, row))
    }

    /// The first row that `before` does not hold for, where it holds for those before it.
    fn first_row(&self, before: impl Fn(&[u64]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.rows.len());
        while low < high {
            let middle = low + (high - low) / 2;
            (low, high) = if before(self.row(middle)) { (middle + 1, high) } else { (low, middle) };
        }
        low
    }

    /// The sizes of a row; none past the last.
    fn row(&self, row: usize) -> &[u64] {
        let width = self.names.len();
        self.sizes.get(row * width..(row + 1) * width).unwrap_or_default()
    }
}

/// Sizes of the same power of two have the same, and 0 has one to itself.
fn bucket(size: u64) -> u32 {
    size.checked_ilog2().map_or(0, |power| power + 1)
}

/// Whether neither size is more than twice the other, as 0 is of none but 0.
const fn within(one: u64, other: u64) -> bool {
    one <= other.saturating_mul(2) && other <= one.saturating_mul(2)
}
