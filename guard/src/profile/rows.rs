//! Reads RON files of the form `(schema: 1, .., rows: [..])`, so that a bad row costs only itself.
//!
//! Files are first parsed whole, which is fast and needs no positions. [`read_rows`] is for files
//! where that failed: it takes the rows one by one, and after a broken bracket, string or comment
//! resumes at the next line that begins a row. Its time is linear in the file's size.

use core::fmt;

use ron::de::{Deserializer, SpannedError};
use ron::ser::{PrettyConfig, to_writer_pretty};
use ron::value::RawValue;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::error::{FileFault, MAX_FILE_BYTES, ProfileError, SCHEMA};
use super::model::MAX_ENTRIES;

/// The number of the file's schema. Any but the current one stops the parser at once, for the rest
/// of such a file may have any form.
#[derive(Debug)]
pub(super) struct Schema;

impl<'de> Deserialize<'de> for Schema {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            SCHEMA => Ok(Self),
            found => Err(D::Error::custom(format!("{OTHER_SCHEMA}{found}"))),
        }
    }
}

/// In place of the type of a row: stops the parser at the first row, behind the header.
#[derive(Debug)]
pub(super) struct FirstRow;

impl<'de> Deserialize<'de> for FirstRow {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom(FIRST_ROW))
    }
}

/// A file read row by row. Positions are byte offsets; [`locate`] turns them into lines.
#[derive(Debug)]
pub(super) struct Rows<H, R> {
    pub(super) header: H,
    pub(super) good: Vec<(usize, R)>,
    pub(super) bad: Vec<Offset>,
}

/// A fault whose line and column count from a byte offset.
pub(super) type Offset = (usize, FileFault);

/// Checks a file's size.
pub(super) fn check_size(text: &str) -> Result<(), ProfileError> {
    let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
    if bytes > MAX_FILE_BYTES { Err(ProfileError::TooLarge { bytes }) } else { Ok(()) }
}

/// Reads the rows of a file one by one. `H` is the type of the file with [`FirstRow`] as its rows;
/// `whole` is why the file could not be parsed whole, and the only fault if no row has one.
///
/// # Errors
///
/// [`ProfileError::Schema`], [`ProfileError::Header`] and [`ProfileError::TooManyEntries`].
pub(super) fn read_rows<H, R>(
    text: &str,
    whole: Option<SpannedError>,
) -> Result<Rows<H, R>, ProfileError>
where
    H: DeserializeOwned,
    R: DeserializeOwned,
{
    let bad_header = |error| ProfileError::Header(locate_one(text, (0, fault(error))));
    let mut reader = Deserializer::from_str(text).map_err(bad_header)?;
    let mut rows = RowReader { text, good: Vec::new(), bad: Vec::new() };
    let header = match H::deserialize(&mut reader) {
        // The list is empty.
        Ok(header) => header,
        Err(ron::Error::Message(message)) if message == FIRST_ROW => {
            let list = text.len() - reader.remainder().len();
            rows.read(list)?;
            // The brackets are on a line of their own, for the header may end in a comment.
            let header = format!("{}\n])", text.get(..list).unwrap_or_default());
            ron::from_str(&header).map_err(bad_header)?
        }
        Err(error) => {
            let found = match &error {
                ron::Error::Message(message) => message.strip_prefix(OTHER_SCHEMA),
                _ => None,
            };
            return Err(match found.and_then(|found| found.parse().ok()) {
                Some(found) => ProfileError::Schema { found },
                None => bad_header(reader.span_error(error)),
            });
        }
    };
    if rows.bad.is_empty() {
        rows.bad.extend(whole.map(|error| (0, fault(error))));
    }
    Ok(Rows { header, good: rows.good, bad: rows.bad })
}

/// The rows of a list that were read so far.
struct RowReader<'a, R> {
    text: &'a str,
    good: Vec<(usize, R)>,
    bad: Vec<Offset>,
}

/// A row without an end: where it begins, and what is wrong.
struct Broken(usize, Offset);

impl<R: DeserializeOwned> RowReader<'_, R> {
    /// Reads the list whose first row begins at `list`.
    fn read(&mut self, list: usize) -> Result<(), ProfileError> {
        let end = self.text.len();
        let whole = self.read_until(end, list);
        self.check_count()?;
        let Err(Broken(mut begin, _)) = whole else { return Ok(()) };
        // From the broken row on, each row that begins a line is read by itself.
        loop {
            let next = self.row_line(begin, end).unwrap_or(end);
            if let Err(Broken(_, fault)) = self.read_until(next, begin) {
                self.bad.push(fault);
            }
            self.check_count()?;
            if next == end {
                return Ok(());
            }
            begin = next;
        }
    }

    /// Reads the rows between two offsets, until there are too many.
    fn read_until(&mut self, end: usize, mut begin: usize) -> Result<(), Broken> {
        let is_last = end == self.text.len();
        while self.check_count().is_ok() {
            let part = self.text.get(begin..end).unwrap_or_default();
            let broken = |row, error| Err(Broken(row, (begin, fault(error))));
            let mut reader = match Deserializer::from_str_with_options(part, &options()) {
                Ok(reader) => reader,
                Err(error) => return broken(begin, error),
            };
            // Blanks and comments before the row were skipped.
            let row = end - reader.remainder().len();
            match reader.remainder().chars().next() {
                None if is_last => {
                    return broken(row, reader.span_error(ron::Error::ExpectedArrayEnd));
                }
                None => return Ok(()),
                Some(']') if is_last => return self.read_end(row),
                Some(']') => {
                    return broken(row, reader.span_error(ron::Error::UnexpectedChar(']')));
                }
                Some(_) => {}
            }
            let raw = match <&RawValue>::deserialize(&mut reader) {
                Ok(raw) => raw.get_ron(),
                Err(error) => return broken(row, reader.span_error(error)),
            };
            let next = end - reader.remainder().len();
            if !reader.remainder().starts_with([',', ']']) {
                return broken(row, reader.span_error(ron::Error::ExpectedComma));
            }
            match ron::from_str(raw) {
                Ok(good) => self.good.push((row, good)),
                // A bracket too many or too few may have made this row swallow the next one.
                Err(error) if self.row_line(row, next).is_some() => return broken(row, error),
                Err(error) => {
                    let raw = raw.as_ptr().addr() - self.text.as_ptr().addr();
                    self.bad.push((raw, fault(error)));
                }
            }
            begin = next + usize::from(reader.remainder().starts_with(','));
        }
        Ok(())
    }

    /// Checks the end of the file, from the bracket that closes the list.
    fn read_end(&self, list_end: usize) -> Result<(), Broken> {
        let text = format!("([{}", self.text.get(list_end..).unwrap_or_default());
        let parsed = ron::from_str::<(Vec<IgnoredAny>,)>(&text);
        parsed.map(drop).map_err(|error| {
            let mut fault = fault(error);
            if fault.line == 1 {
                // Two brackets were put before the text.
                fault.column = fault.column.saturating_sub(2).max(1);
            }
            Broken(list_end, (list_end, fault))
        })
    }

    /// The first line between two offsets that begins a row.
    fn row_line(&self, from: usize, to: usize) -> Option<usize> {
        let mut line = from;
        loop {
            line += self.text.get(line..to)?.find('\n')? + 1;
            let rest = self.text.get(line..to)?;
            let row = rest.trim_start_matches([' ', '\t']);
            if row.starts_with(ROW_BEGIN) {
                return Some(line + (rest.len() - row.len()));
            }
        }
    }

    fn check_count(&self) -> Result<(), ProfileError> {
        let rows = self.good.len() + self.bad.len();
        if rows > MAX_ENTRIES { Err(ProfileError::TooManyEntries) } else { Ok(()) }
    }
}

fn options() -> ron::Options {
    ron::Options::default().with_recursion_limit(MAX_DEPTH)
}

/// A fault at the first character.
pub(super) fn first_character(message: impl fmt::Display) -> FileFault {
    FileFault { line: 1, column: 1, message: message.to_string() }
}

fn fault(error: SpannedError) -> FileFault {
    let message = match error.code {
        ron::Error::ExceededRecursionLimit => {
            format!("brackets are nested deeper than {MAX_DEPTH}")
        }
        code => code.to_string(),
    };
    FileFault { line: error.span.start.line, column: error.span.start.col, message }
}

fn locate_one(text: &str, bad: Offset) -> FileFault {
    let fallback = bad.1.clone();
    locate(text, vec![bad]).pop().unwrap_or(fallback)
}

/// Turns offsets into positions within the text, in its order.
pub(super) fn locate(text: &str, mut bad: Vec<Offset>) -> Vec<FileFault> {
    bad.sort_by_key(|(offset, fault)| (*offset, fault.line, fault.column));
    let (mut line, mut column, mut at) = (1, 1, 0);
    let mut advance = |to| {
        for character in text.get(at..to).unwrap_or_default().chars() {
            (line, column) = if character == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        at = to;
        (line, column)
    };
    let mut faults = Vec::with_capacity(bad.len());
    for (offset, FileFault { line, column, message }) in bad {
        let (first_line, first_column) = advance(offset);
        let column = if line <= 1 { first_column + column.max(1) - 1 } else { column };
        faults.push(FileFault { line: first_line + line.max(1) - 1, column, message });
    }
    // The parser may have read brackets that were appended to the text.
    let end = advance(text.len());
    for fault in &mut faults {
        (fault.line, fault.column) = (fault.line, fault.column).min(end);
    }
    faults.sort_by_key(|fault| (fault.line, fault.column));
    faults
}

/// A value as RON on one line.
pub(super) struct Ron<'a, T: ?Sized>(pub(super) &'a T);

impl<T: ?Sized + Serialize> fmt::Display for Ron<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        to_writer_pretty(f, self.0, PrettyConfig::new().depth_limit(0)).map_err(|_| fmt::Error)
    }
}

/// How each line begins that begins a row.
const ROW_BEGIN: &str = "(kernel:";
/// The deepest nesting of brackets; a row needs four levels.
const MAX_DEPTH: usize = 16;
/// The messages of [`Schema`] and [`FirstRow`], which reach [`read_rows`] through the parser.
const OTHER_SCHEMA: &str = "the schema is ";
const FIRST_ROW: &str = "the first row";
