//! Makes values from bytes, which come from a fuzzer or from a random generator.

use core::fmt::Debug;
use core::ops::Range;

use proptest::prelude::*;

/// Bytes that are read one after another, followed by endless zeros.
#[derive(Debug)]
pub struct Bytes<'a> {
    left: &'a [u8],
}

/// Values that `make` makes from random bytes.
pub fn from_bytes<T: Debug + 'static>(make: fn(&mut Bytes<'_>) -> T) -> BoxedStrategy<T> {
    let bytes = prop::collection::vec(any::<u8>(), MOST);
    bytes.prop_map(move |bytes| make(&mut Bytes::new(&bytes))).boxed()
}

/// More bytes than any value takes.
const MOST: usize = 400;

impl<'a> Bytes<'a> {
    /// Reads from `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// A little-endian number of `bytes` bytes.
    fn number(&mut self, bytes: usize) -> u64 {
        let (taken, left) = self.left.split_at(bytes.min(self.left.len()));
        self.left = left;
        taken.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.number(8)
    }

    /// A number within `range`.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        let count = range.end - range.start;
        let bytes = if count <= 1 << 8 {
            1
        } else if count <= 1 << 16 {
            2
        } else {
            4
        };
        range.start + self.number(bytes) % count
    }

    /// A number from minus `most` to `most`.
    pub fn around_zero(&mut self, most: i64) -> i64 {
        let width = u64::try_from(2 * most + 1).expect("positive");
        i64::try_from(self.within(0..width)).expect("small") - most
    }

    /// An index into `weights`, drawn with these weights.
    pub fn one_of<const N: usize>(&mut self, weights: [u8; N]) -> usize {
        let all = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut left = self.within(0..all);
        let passed = weights.iter().take_while(|weight| {
            let weight = u64::from(**weight);
            let passes = left >= weight;
            left = left.saturating_sub(weight);
            passes
        });
        passed.count()
    }

    /// True in one case of `cases`.
    pub fn one_in(&mut self, cases: u64) -> bool {
        // The last case, so that zeros give false.
        self.within(0..cases) + 1 == cases
    }

    /// A value in one case of `cases`.
    pub fn maybe<T>(&mut self, cases: u64, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(cases).then(|| make(self))
    }
}
