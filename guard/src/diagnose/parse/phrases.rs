//! The words of all messages, found in one pass over a line.

use core::cmp::Reverse;
use std::collections::HashMap;

use once_cell::sync::OnceCell;

use crate::diagnose::codes::failures;
use crate::diagnose::failure::{Failure, Origin};

/// Words of a message, in lower case.
#[derive(Debug)]
pub(super) struct Phrase {
    words: String,
    pub(super) failure: &'static Failure,
    pub(super) counts: Counts,
}

/// Where a phrase is taken for a failure of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    Everywhere,
    /// In a line that speaks of CUDA, and in a question.
    BesideCuda,
    /// In a line of the driver's kernel module.
    BesideModule,
    /// In a question, and in a line of PyCUDA, which says names as words.
    WhereAsked,
}

/// What other programs say as well, although it is more than three words.
const COMMON: [&str; 9] = [
    "wait operation timed out",
    "the library was not initialized",
    "the resource allocation failed",
    "an internal operation failed",
    "the requested functionality is not supported",
    "an unsupported value or parameter was passed to the function",
    "the function requires an architectural feature absent from the",
    "the operation cannot be performed in the present state",
    "remote process exited or there was a network error",
];
/// What no other program says, although it is no more than three words.
const OWN: [&str; 5] = [
    "invalid configuration argument",
    "unspecified launch failure",
    "device-side assert triggered",
    "invalid device function",
    "resource_exhausted: failed to allocate",
];
/// What marks a phrase as one of CUDA's.
const MARKS: [&str; 9] =
    ["cuda", "gpu", "nvidia", "nvml", "nvrm", "nccl", "cudnn", "num_gpus", "torch."];

/// Beginnings of what is looked for beside phrases.
const BEGINNINGS: [&str; 13] = [
    "cuda", "cudn", "cubl", "cuff", "cuso", "cure", "cuin", "nccl", "nvrt", "nvrm", "ion `",
    "libn", "libc",
];

/// Bits of the set of pieces; few of them are set, so that most text is passed over.
const BITS: usize = 1 << 16;
/// Four bytes, in lower case.
type Piece = [u8; 4];

/// All phrases, and how they are found.
pub(super) struct Phrases {
    /// Those that only wrap another failure last, longer ones first: the first is the best.
    ranked: Vec<Phrase>,
    /// A piece of each phrase, with its place there.
    pieces: HashMap<Piece, Vec<(usize, usize)>>,
    /// Whether a piece, by its hash, is one of a phrase or of a beginning.
    wanted: Vec<bool>,
}

impl Phrases {
    pub(super) fn get() -> &'static Self {
        static PHRASES: OnceCell<Phrases> = OnceCell::new();
        PHRASES.get_or_init(|| Self::of(failures()))
    }

    fn of(failures: impl Iterator<Item = &'static Failure>) -> Self {
        let mut ranked: Vec<Phrase> = failures.flat_map(phrases_of).collect();
        ranked.sort_by_key(|phrase| (phrase.failure.wraps, Reverse(phrase.words.len())));
        let mut pieces: HashMap<Piece, Vec<(usize, usize)>> = HashMap::new();
        for (rank, phrase) in ranked.iter().enumerate() {
            let best = pieces_of(phrase.words.as_bytes())
                .max_by_key(|(_, piece)| (pieces.contains_key(piece), rarity(*piece)));
            if let Some((place, piece)) = best {
                pieces.entry(piece).or_default().push((rank, place));
            }
        }
        let beginnings = BEGINNINGS.iter().flat_map(|text| pieces_of(text.as_bytes()));
        let mut wanted = vec![false; BITS];
        for piece in pieces.keys().copied().chain(beginnings.map(|(_, piece)| piece)) {
            if let Some(bit) = wanted.get_mut(hash(piece)) {
                *bit = true;
            }
        }
        Self { ranked, pieces, wanted }
    }

    fn wants(&self, piece: Piece) -> bool {
        self.wanted.get(hash(piece)).is_some_and(|bit| *bit)
    }

    /// Whether `line` may tell of a failure; most lines do not, which is found out fast.
    pub(super) fn may_tell(&self, line: &[u8]) -> bool {
        pieces_of(line).any(|(_, piece)| self.wants(piece))
    }

    /// The best phrase of `lower` that `counts`.
    pub(super) fn best(&self, lower: &str, counts: impl Fn(Counts) -> bool) -> Option<&Phrase> {
        let mut found: Option<usize> = None;
        for (start, piece) in pieces_of(lower.as_bytes()) {
            if !self.wants(piece) {
                continue;
            }
            for (rank, place) in self.pieces.get(&piece).into_iter().flatten() {
                let better = found.is_none_or(|found| *rank < found);
                let phrase = self.ranked.get(*rank).filter(|_| better);
                let fits = |phrase: &&Phrase| {
                    start
                        .checked_sub(*place)
                        .is_some_and(|start| stands_at(lower, start, &phrase.words))
                };
                if phrase.filter(fits).is_some_and(|phrase| counts(phrase.counts)) {
                    found = Some(*rank);
                }
            }
        }
        self.ranked.get(found?)
    }
}

fn phrases_of(failure: &'static Failure) -> impl Iterator<Item = Phrase> {
    let wordings = failure.wordings.iter().map(move |words| {
        let words = words.to_ascii_lowercase();
        let counts = match failure.origin {
            Origin::Xid => Counts::BesideModule,
            _ => counts(&words),
        };
        Phrase { words, failure, counts }
    });
    // People ask for `invalid value` and mean CUDA_ERROR_INVALID_VALUE.
    let stem = failure.name.strip_prefix("CUDA_ERROR_").filter(|stem| stem.contains('_'));
    let stem = stem.map(|stem| stem.to_ascii_lowercase().replace('_', " "));
    let stem = stem.map(|words| Phrase { words, failure, counts: Counts::WhereAsked });
    wordings.chain(stem)
}

fn counts(words: &str) -> Counts {
    let is_long = words.split(' ').count() > 3 || MARKS.iter().any(|mark| words.contains(mark));
    if OWN.contains(&words) || is_long && !COMMON.contains(&words) {
        Counts::Everywhere
    } else {
        Counts::BesideCuda
    }
}

/// Whether `words` stand in `text` at `start`, as whole words.
fn stands_at(text: &str, start: usize, words: &str) -> bool {
    let is_letter = |c: &u8| c.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    let before = start.checked_sub(1).and_then(|at| bytes.get(at));
    let end = start + words.len();
    bytes.get(start..end) == Some(words.as_bytes())
        && !before.is_some_and(is_letter)
        && !bytes.get(end).is_some_and(is_letter)
}

fn pieces_of(text: &[u8]) -> impl Iterator<Item = (usize, Piece)> + '_ {
    text.array_windows::<4>().map(|piece| piece.map(|byte| byte.to_ascii_lowercase())).enumerate()
}

/// Sixteen bits of a product with the golden ratio's.
fn hash(piece: Piece) -> usize {
    usize::from(
        u16::try_from(u32::from_le_bytes(piece).wrapping_mul(0x9e37_79b9) >> 16).unwrap_or(0),
    )
}

/// How seldom a piece is met in other text, by its letters.
fn rarity(piece: Piece) -> usize {
    const COMMONEST_FIRST: &str = "eatoinsrhldcumfpgwybvkxjqz";
    let of = |byte: u8| COMMONEST_FIRST.find(char::from(byte)).unwrap_or(0);
    piece.map(of).iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phrase_is_found_by_its_piece_and_its_line_is_never_passed_over() {
        let phrases = Phrases::get();
        for phrase in &phrases.ranked {
            let line = format!("a line of x: {}.", phrase.words.to_ascii_uppercase());
            assert!(phrases.may_tell(line.as_bytes()), "{line}");
            let found = phrases.best(&line.to_ascii_lowercase(), |_| true).expect("found");
            assert!(found.words.contains(&phrase.words), "{} for {}", found.words, phrase.words);
        }
    }

    #[test]
    fn words_are_whole_words() {
        assert!(stands_at("x out of memory.", 2, "out of memory"));
        assert!(!stands_at("about of memory", 2, "out of memory"));
        assert!(!stands_at("out of memoryless", 0, "out of memory"));
        assert!(!stands_at("out of", 0, "out of memory"));
    }

    #[test]
    fn plain_lines_are_passed_over() {
        let phrases = Phrases::get();
        for line in ["", "abc", "step 12 loss 0.1234 tokens/s 12345.6", "\u{fc}\u{1f600}"] {
            assert!(!phrases.may_tell(line.as_bytes()), "{line}");
        }
    }
}
