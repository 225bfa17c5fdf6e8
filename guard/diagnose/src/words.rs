//! The words of a line, and the table that tells which patterns a word may belong to.

use crate::value::is_word;

/// Calls `found` with the hash of each word.
pub(crate) fn hashes(line: &[u8], mut found: impl FnMut(u32)) {
    let mut hash = SEED;
    let mut chevrons = 0;
    for byte in line {
        if is_word(*byte) {
            hash = next(hash, *byte);
            continue;
        }
        if hash != SEED {
            found(hash);
            hash = SEED;
        }
        chevrons = if *byte == b'<' { chevrons + 1 } else { 0 };
        if chevrons == CHEVRONS.len() {
            found(self::hash(CHEVRONS));
        }
    }
    if hash != SEED {
        found(hash);
    }
}

/// The hash of a word.
pub(crate) fn hash(word: &str) -> u32 {
    word.bytes().fold(SEED, next)
}

/// One bit of 64 for a word: a pattern can only be in a line that has the bits of all its words.
pub(crate) const fn bit(hash: u32) -> u64 {
    1 << (hash.wrapping_mul(0x9e37_79b1) >> 26)
}

/// Begins the configuration of a launch, and counts as a word.
pub(crate) const CHEVRONS: &str = "<<<";

const SEED: u32 = 0x811c_9dc5;

/// FNV-1a of the lower case.
const fn next(hash: u32, byte: u8) -> u32 {
    #[allow(clippy::as_conversions, reason = "`From` is no const function")]
    let byte = byte.to_ascii_lowercase() as u32;
    (hash ^ byte).wrapping_mul(0x0100_0193)
}

/// The slot of a table of `slots`, a power of two, where the search for a hash begins.
#[allow(clippy::as_conversions, reason = "u32 into usize loses nothing here")]
pub(crate) const fn slot(hash: u32, slots: usize) -> usize {
    ((hash ^ (hash >> 15)) as usize) & (slots - 1)
}
