//! The rows of `bench-data/failures`, as the build script writes them.

use crate::kinds::{Confidence, Fault, Memory, Platform};
use crate::words;

/// What one kind of message means.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) platform: Platform,
    pub(crate) owner: &'static str,
    pub(crate) title: &'static str,
    pub(crate) confidence: Confidence,
    /// Each has a pattern in the log, as places in [`PATTERNS`].
    pub(crate) near: &'static [&'static [usize]],
    /// None is in the log.
    pub(crate) without: &'static [usize],
    /// One is in the same line as words that other programs print, too, in lower case.
    pub(crate) here: &'static [&'static str],
    pub(crate) when: &'static [&'static str],
    pub(crate) cause: &'static str,
    pub(crate) remedy: &'static str,
    pub(crate) command: &'static str,
    pub(crate) fault: Fault,
    pub(crate) memory: Option<Memory>,
    /// Facts that the row states.
    pub(crate) facts: &'static [(&'static str, &'static str)],
    /// Rows whose lines are consequences.
    pub(crate) explains: &'static [usize],
    /// Rows with possible causes.
    pub(crate) may: &'static [usize],
    pub(crate) is_sticky: bool,
    pub(crate) is_late: bool,
    pub(crate) source: &'static str,
}

/// A pattern and what it means.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) text: &'static str,
    /// Words in its literals.
    pub(crate) words: u16,
    pub(crate) of: Use,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A line of the row.
    Line(usize),
    /// A line of the row that counts beside one of its `here`.
    Words(usize),
    /// Context of rows.
    Context,
    /// A number of the family, in the hole `code`.
    Number(usize),
}

#[allow(clippy::unreadable_literal, reason = "hashes")]
mod tables {
    use super::{Confidence, Entry, Fault, Memory, Platform, Row, Use};

    include!(concat!(env!("OUT_DIR"), "/tables.rs"));
}

pub(crate) use tables::{FAMILIES, PATTERNS, ROWS};

/// The patterns that a word of this hash may belong to.
pub(crate) fn found_by(hash: u32) -> &'static [u16] {
    let slots = tables::WORDS.len();
    let mut slot = words::slot(hash, slots);
    while let Some((found, start, count)) =
        tables::WORDS.get(slot).filter(|(_, _, count)| *count > 0)
    {
        if *found == hash {
            let start = usize::from(*start);
            return tables::PLACES.get(start..start + usize::from(*count)).unwrap_or_default();
        }
        slot = (slot + 1) & (slots - 1);
    }
    &[]
}

/// The place of a row.
pub(crate) fn place_of(id: &str) -> Option<usize> {
    ROWS.binary_search_by(|row| row.id.cmp(id)).ok()
}

/// The row of a family's code.
pub(crate) fn row_of_code(family: usize, code: i64) -> Option<usize> {
    let prefix = FAMILIES.get(family)?;
    let id = match code {
        ..0 => format!("{prefix}-minus-{}", code.unsigned_abs()),
        0x4000_0000.. => format!("{prefix}-0x{code:08x}"),
        _ => format!("{prefix}-{code}"),
    };
    place_of(&id)
}

/// Whether the row is of a family's code.
pub(crate) fn is_of_family(row: usize, family: usize) -> bool {
    let prefix = FAMILIES.get(family).copied().unwrap_or_default();
    let rest = ROWS.get(row).and_then(|row| row.id.strip_prefix(prefix));
    rest.is_some_and(|rest| rest.starts_with('-'))
}
