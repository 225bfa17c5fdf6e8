//! The result of rewriting a text.

use crate::error::Position;
use crate::fold::{FOLDED_WORDS, SHIFTED_WORDS};
use crate::refusal::Refusal;

/// A rewritten text and its report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// The text. Forms follow their originals.
    pub text: Vec<u8>,
    /// The report.
    pub report: Report,
}

/// The entries of a text, their forms, and the reasons for missing forms.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The PTX version, major and minor.
    pub version: (u32, u32),
    /// The target, such as `sm_80`.
    pub target: String,
    /// The entries, in the order of the text.
    pub entries: Vec<EntryReport>,
    /// The functions with a variant that takes block indices and grid size as parameters.
    pub functions: Vec<String>,
}

impl Report {
    /// The entry called `name`.
    pub fn entry(&self, name: &str) -> Option<&EntryReport> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

/// An entry of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryReport {
    /// Its name.
    pub name: String,
    /// The position of its name.
    pub at: Position,
    /// The number of its parameters.
    pub parameters: usize,
    /// The bytes of all parameters, each at its alignment.
    pub parameter_bytes: u64,
    /// The axes x, y and z whose block index it reads, itself or through functions that it calls.
    pub reads_block_index: [bool; 3],
    /// The axes x, y and z whose grid size it reads. The original then cannot have a batch axis, because each
    /// chunk would see its own size.
    pub reads_grid_size: [bool; 3],
    /// Its forms, or the reason why it has none.
    pub forms: Result<Forms, Refusal>,
}

impl EntryReport {
    /// Whether the entry reads the grid size on any axis.
    pub fn uses_grid_size(&self) -> bool {
        self.reads_grid_size.contains(&true)
    }
}

/// The forms of an entry. Each takes the parameters of the entry, and an array of 32-bit words by value as the
/// last parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forms {
    /// The name of the shifted entry. Its words: [`shifted_words`](crate::shifted_words).
    pub shifted: String,
    /// The name of the folded entry. Its words: [`Fold::words`](crate::Fold::words).
    pub folded: String,
    /// The index of the added parameter, for an array of addresses of parameters.
    pub parameter_index: usize,
    /// The offset of the added parameter in bytes, for a buffer with all parameters. The parameter is aligned to
    /// 8 bytes, and its words have 4 bytes.
    pub parameter_offset: u64,
}

/// How a form computes the block index of the whole launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// The driver's block index plus the chunk's first block, on each axis.
    Shifted,
    /// From a flat launch on x, by division.
    Folded,
}

impl Form {
    /// The bytes of the added parameter.
    pub fn parameter_bytes(self) -> u64 {
        let words = match self {
            Self::Shifted => SHIFTED_WORDS,
            Self::Folded => FOLDED_WORDS,
        };
        u64::try_from(words).unwrap_or(u64::MAX).saturating_mul(4)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shifted => "shifted",
            Self::Folded => "folded",
        }
    }
}

/// The alignment of the added parameter in bytes: a form loads two of its words at once.
pub(crate) const ALIGNMENT: u64 = 8;
