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
    /// Lines between the row's line and each of `near`.
    pub(crate) within: u64,
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
    /// The sizes of the launch beside it are checked.
    pub(crate) is_launch: bool,
    pub(crate) is_sticky: bool,
    pub(crate) is_late: bool,
    /// The program goes on: failures at most `within` lines before it are harmless.
    pub(crate) recovers: bool,
    pub(crate) source: &'static str,
}

/// A pattern and what it means.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) text: &'static str,
    /// Words in its literals.
    pub(crate) words: u16,
    /// The bits of its whole words.
    pub(crate) bits: u64,
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

// `DERIVED`: rows without lines, which hold at the lines of those that they explain.
pub(crate) use tables::{DERIVED, FAMILIES, PATTERNS, ROWS};

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

/// The place of a family.
pub(crate) fn family(prefix: &str) -> Option<usize> {
    FAMILIES.iter().position(|(it, _)| *it == prefix)
}

/// The row of a family's code, or the row for codes that are not listed.
pub(crate) fn row_of_code(family: usize, code: i64) -> Option<usize> {
    let (prefix, former) = FAMILIES.get(family)?;
    let id = |code: i64| match code {
        ..0 => format!("{prefix}-minus-{}", code.unsigned_abs()),
        0x4000_0000.. => format!("{prefix}-0x{code:08x}"),
        _ => format!("{prefix}-{code}"),
    };
    let former = || former.iter().find(|(old, _)| *old == code).map(|(_, new)| *new);
    let unlisted =
        || place_of(&format!("{prefix}-unlisted")).filter(|_| (1..1 << 16).contains(&code));
    place_of(&id(code)).or_else(|| place_of(&id(former()?))).or_else(unlisted)
}

/// The number in the id of a code's row.
pub(crate) fn code_of(row: &Row) -> Option<i64> {
    let of_family = |(prefix, _): &(&str, _)| row.id.strip_prefix(*prefix)?.strip_prefix('-');
    let code = FAMILIES.iter().find_map(of_family)?;
    match (code.strip_prefix("minus-"), code.strip_prefix("0x")) {
        (Some(code), _) => code.parse::<i64>().ok().map(|code| -code),
        (_, Some(code)) => i64::from_str_radix(code, 16).ok(),
        _ => code.parse().ok(),
    }
}

/// Whether the row is of a family's code.
pub(crate) fn is_of_family(row: usize, family: usize) -> bool {
    let prefix = FAMILIES.get(family).map_or("", |(prefix, _)| prefix);
    let row = ROWS.get(row).filter(|row| row.id.starts_with(prefix));
    row.is_some_and(|row| code_of(row).is_some())
}

/// The names of the failures whose name or message has `text`, if they are few.
#[must_use]
pub fn similar_failures(text: &str) -> Vec<&'static str> {
    const MOST: usize = 8;
    let text = text.trim().to_ascii_lowercase();
    if text.len() < 4 {
        return Vec::new();
    }
    let has_text = |it: &str| it.to_ascii_lowercase().contains(&text);
    let lines = PATTERNS.iter().filter_map(|entry| match entry.of {
        Use::Line(row) | Use::Words(row) if has_text(entry.text) => Some(row),
        _ => None,
    });
    let titled = ROWS.iter().filter(|row| has_text(row.title));
    let is_asked = |row: &&Row| matches!(row.platform, Platform::Cuda | Platform::Any);
    let mut titles: Vec<&str> = lines
        .filter_map(|row| ROWS.get(row))
        .chain(titled)
        .filter(|row| row.confidence < Confidence::Unknown && is_asked(row))
        .map(|row| row.title)
        .filter(|title| !title.is_empty())
        .collect();
    titles.sort_unstable();
    titles.dedup();
    if titles.len() > MOST { Vec::new() } else { titles }
}
