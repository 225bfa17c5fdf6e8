//! A hash for keys: a lookup hashes a hundred bytes of names, which is most of what it costs.

use core::hash::{BuildHasher, Hasher};
use std::hash::RandomState;

/// Makes hashers that begin with secrets of their own, so that no file can hold keys that collide.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldedBuilder {
    start: u64,
    factor: u64,
}

/// Multiplies eight bytes at a time, folds each product and adds them all up: no product waits for
/// the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldedHasher {
    sum: u64,
    /// Differs from word to word, so that their order matters.
    secret: u64,
    factor: u64,
}

impl Default for FoldedBuilder {
    fn default() -> Self {
        let secrets = RandomState::new();
        // Odd, so that no factor of two is lost.
        Self { start: secrets.hash_one(0), factor: secrets.hash_one(1) | 1 }
    }
}

impl BuildHasher for FoldedBuilder {
    type Hasher = FoldedHasher;

    fn build_hasher(&self) -> FoldedHasher {
        FoldedHasher { sum: 0, secret: self.start, factor: self.factor }
    }
}

impl FoldedHasher {
    #[inline]
    fn add(&mut self, word: u64) {
        self.sum = self.sum.wrapping_add(folded(word ^ self.secret, self.factor));
        self.secret = self.secret.wrapping_add(STEP);
    }
}

#[inline]
fn folded(word: u64, factor: u64) -> u64 {
    let (low, high) = word.carrying_mul(factor, 0);
    low ^ high
}

/// Between the secrets of one word and the next: 2^64 over the golden ratio, which comes near no
/// earlier secret for long.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for FoldedHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
            self.add(u64::from_le_bytes(last));
        }
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.add(byte.into());
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    #[inline]
    fn finish(&self) -> u64 {
        folded(self.sum ^ self.secret, self.factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn texts_that_differ_anywhere_hash_differently() {
        let builder = FoldedBuilder::default();
        let mut seen = HashSet::new();
        for place in 0..100 {
            for byte in 1..=255_u8 {
                let mut text = [0; 100];
                text[place] = byte;
                assert!(seen.insert(builder.hash_one(text)), "byte {byte} at {place}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn low_and_high_bits_both_spread() {
        let builder = FoldedBuilder::default();
        let hashes: Vec<u64> = (0..4096_u64).map(|number| builder.hash_one(number)).collect();
        for shift in [0, 28, 52] {
            let buckets: HashSet<u64> = hashes.iter().map(|hash| hash >> shift & 0xfff).collect();
            // Of 4,096 throws into as many buckets about 2,589 are hit.
            assert!(buckets.len() > 2400, "{} at {shift}", buckets.len());
        }
    }
}
