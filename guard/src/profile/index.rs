//! An index of the tuned shapes of one key. It finds the row of a decision list, or the shape nearest to a requested
//! shape.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::RandomState;

use super::decision::{DecisionList, DecisionRow};
use super::matching::{DefaultReason, Layer, Match};
use super::model::{MAX_SIZES, Named};

/// Shapes with the same size names.
#[derive(Debug)]
pub(super) struct ShapeIndex {
    names: Vec<String>,
    /// Sorted by sizes.
    rows: Vec<IndexRow>,
    /// The entries of the same shapes, so that exact matches need no search.
    exact: HashMap<Box<[u64]>, usize, RandomState>,
    /// The least and the largest bucket of each size.
    spans: Vec<(u32, u32)>,
    /// Of the highest layer first.
    lists: Vec<IndexList>,
}

/// A decision list, with sizes by place instead of name.
#[derive(Debug)]
struct IndexList {
    within: Box<[(u64, u64)]>,
    rows: Box<[IndexedRow]>,
}

#[derive(Debug)]
struct IndexedRow {
    when: Box<[(usize, (u64, u64))]>,
    decided: Decided,
}

/// What a lookup finds: the index of an entry, or the layer of a row that decides for the default.
#[derive(Clone, Copy, Debug)]
pub(super) enum Decided {
    Entry(usize),
    Default(Layer),
}

/// A shape.
#[derive(Debug)]
struct IndexRow {
    sizes: Box<[u64]>,
    /// [`log2`] of the sizes.
    logs: Box<[u32]>,
    /// The index of the entry within its profile.
    entry: usize,
    layer: Layer,
}

impl ShapeIndex {
    /// An empty index of shapes with the size names of `shape`.
    pub(super) fn new(shape: &Named) -> Self {
        let names: Vec<String> = shape.iter().map(|(name, _)| name.clone()).collect();
        let spans = vec![(u32::MAX, 0); names.len()];
        let (rows, exact, lists) = (Vec::new(), HashMap::default(), Vec::new());
        Self { names, rows, exact, spans, lists }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether `shape` has the same size names.
    pub(super) fn accepts(&self, shape: &Named) -> bool {
        self.names.iter().eq(shape.iter().map(|(name, _)| name))
    }

    /// Appends a shape. Push in sorted order, highest layer first. Duplicates are ignored.
    pub(super) fn push(&mut self, shape: &Named, entry: usize, layer: Layer) {
        let sizes: Box<[u64]> = shape.iter().map(|(_, size)| *size).collect();
        let Entry::Vacant(exact) = self.exact.entry(sizes.clone()) else { return };
        exact.insert(entry);
        for (size, (least, most)) in sizes.iter().zip(&mut self.spans) {
            let bucket = bucket(*size);
            (*least, *most) = (bucket.min(*least), bucket.max(*most));
        }
        let logs = sizes.iter().map(|size| log2(*size)).collect();
        self.rows.push(IndexRow { sizes, logs, entry, layer });
    }

    /// Appends a list, the list of the highest layer first. `decided` has what each row decides. Ignores a list with other
    /// size names.
    pub(super) fn push_list(
        &mut self,
        list: &DecisionList,
        decided: impl Fn(&DecisionRow) -> Decided,
    ) {
        if !self.names.iter().eq(list.within.iter().map(|(name, _)| name)) {
            return;
        }
        let row = |row: &DecisionRow| {
            let ranges = row.when.iter();
            let when = ranges.filter_map(|(name, range)| Some((list.place(name)?, *range)));
            IndexedRow { when: when.collect(), decided: decided(row) }
        };
        let within = list.within.iter().map(|(_, range)| *range).collect();
        self.lists.push(IndexList { within, rows: list.rows.iter().map(row).collect() });
    }

    /// The best entry for `sizes`, and how it matches.
    #[inline]
    pub(super) fn find(&self, sizes: &[u64]) -> (Match, Option<Decided>) {
        match self.exact.get(sizes) {
            Some(entry) => (Match::Exact, Some(Decided::Entry(*entry))),
            None => self.find_inexact(sizes),
        }
    }

    fn find_inexact(&self, sizes: &[u64]) -> (Match, Option<Decided>) {
        if let Some((row, decided)) = self.lists.iter().find_map(|list| list.find(sizes)) {
            return (Match::Row { row }, Some(decided));
        }
        let outside =
            |(size, (least, most)): (&u64, &(u32, u32))| !(*least..=*most).contains(&bucket(*size));
        let reason = if sizes.len() != self.names.len() {
            DefaultReason::SizeCount { expected: self.names.len(), given: sizes.len() }
        } else if sizes.first() == Some(&0) {
            DefaultReason::ZeroSize
        } else if let Some(index) = sizes.iter().zip(&self.spans).position(outside) {
            self.out_of_range(index, sizes)
        } else if let Some((matched, entry)) = self.nearest(sizes) {
            return (matched, Some(Decided::Entry(entry)));
        } else {
            DefaultReason::NoNeighbour
        };
        (Match::Default(reason), None)
    }

    fn out_of_range(&self, index: usize, sizes: &[u64]) -> DefaultReason {
        let (least, most) = self.spans.get(index).copied().unwrap_or_default();
        let bits = [least, most].map(|bucket| u8::try_from(bucket).unwrap_or(64));
        let size = sizes.get(index).copied().unwrap_or_default();
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        DefaultReason::OutOfRange { index, size, bits: bits.into() }
    }

    /// The best row within an octave of each size: by bucket, then distance, layer and order.
    fn nearest(&self, sizes: &[u64]) -> Option<(Match, usize)> {
        let mut logs = [0; MAX_SIZES];
        for (log, size) in logs.iter_mut().zip(sizes) {
            *log = log2(*size);
        }
        let first = *sizes.first()?;
        let first_of = |row: &IndexRow| row.sizes.first().copied().unwrap_or_default();
        // Rows are sorted by their first size, so rows within an octave of the size are adjacent.
        let begin = self.rows.partition_point(|row| first_of(row) < first.div_ceil(2));
        let near =
            self.rows.iter().skip(begin).take_while(|row| within_octave(first_of(row), first));
        let ranked = near.filter_map(|row| {
            let mut pairs = row.sizes.iter().zip(sizes);
            if !pairs.clone().all(|(tuned, size)| within_octave(*tuned, *size)) {
                return None;
            }
            let distance: u32 =
                row.logs.iter().zip(&logs).map(|(tuned, log)| tuned.abs_diff(*log)).sum();
            let is_other_bucket = !pairs.all(|(tuned, size)| bucket(*tuned) == bucket(*size));
            Some((is_other_bucket, distance, row))
        });
        let (is_other_bucket, distance, row) =
            ranked.min_by_key(|(other, distance, row)| (*other, *distance, row.layer))?;
        let distance_millioctaves = millioctaves(distance);
        let neighbour = Match::Neighbour { distance_millioctaves };
        Some((if is_other_bucket { neighbour } else { Match::Bucket }, row.entry))
    }
}

impl IndexList {
    fn find(&self, sizes: &[u64]) -> Option<(usize, Decided)> {
        let is_in = |size: u64, (low, high): (u64, u64)| (low..=high).contains(&size);
        let mut pairs = sizes.iter().zip(&self.within);
        if sizes.len() != self.within.len() || !pairs.all(|(size, range)| is_in(*size, *range)) {
            return None;
        }
        let decides = |row: &IndexedRow| {
            let size = |place: usize| sizes.get(place).copied().unwrap_or_default();
            row.when.iter().all(|(place, range)| is_in(size(*place), *range))
        };
        let row = self.rows.iter().position(decides)?;
        self.rows.get(row).map(|found| (row, found.decided))
    }
}

/// The bit length: equal for sizes between the same powers of two. 0 has a bucket of its own.
fn bucket(size: u64) -> u32 {
    size.checked_ilog2().map_or(0, |power| power + 1)
}

/// Whether neither size is more than twice the other. Only 0 is within an octave of 0.
const fn within_octave(one: u64, other: u64) -> bool {
    one <= other.saturating_mul(2) && other <= one.saturating_mul(2)
}

/// The logarithm of `size` to base 2 in 65,536ths, rounded down. It uses integers, so that every machine ranks
/// neighbours alike. Zero has the logarithm of one, and is never compared with another size.
fn log2(size: u64) -> u32 {
    let whole = size.checked_ilog2().unwrap_or(0);
    let mut log = whole;
    // From 1 to 2, as a multiple of 2^-63.
    let mut mantissa = size.max(1) << (63 - whole);
    for _ in 0..FRACTION_BITS {
        // Squaring doubles the logarithm. Its next binary digit is 1 if the square reaches 2.
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        let carry = square >> 64 != 0;
        let square = if carry { square >> 1 } else { square };
        mantissa = u64::try_from(square).unwrap_or(u64::MAX);
        log = (log << 1) | u32::from(carry);
    }
    log
}

/// Thousandths of an octave, rounded to the nearest.
fn millioctaves(distance: u32) -> u32 {
    let thousandths = (u64::from(distance) * 1000 + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS;
    u32::try_from(thousandths).unwrap_or(u32::MAX)
}

/// Binary digits after the point of a logarithm.
const FRACTION_BITS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_of_a_power_of_two_is_whole() {
        for power in 0..64 {
            assert_eq!(log2(1 << power), power << FRACTION_BITS);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn logarithms_agree_with_floating_point() {
        for size in (1..10_000_u32).chain([u32::MAX - 1, u32::MAX]) {
            let expected = f64::from(size).log2() * 65_536.0;
            assert!((f64::from(log2(u64::from(size))) - expected).abs() < 1.01, "{size}");
        }
        assert_eq!(log2(u64::MAX), (64 << FRACTION_BITS) - 1);
    }

    #[test]
    fn millioctaves_are_rounded_to_the_nearest() {
        assert_eq!(millioctaves(log2(96) - log2(64)), 585);
        assert_eq!(millioctaves(1 << FRACTION_BITS), 1000);
    }
}
