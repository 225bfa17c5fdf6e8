//! Reads RON files of the form `(schema: 1, .., rows: [..])` row by row, so that an invalid row does not affect
//! the others.
//!
//! After an unbalanced bracket or an unterminated string or comment, reading resumes at the next line that
//! begins a row. The time is linear in the file's size.

use core::fmt;

use ron::de::{Deserializer, SpannedError};
use ron::ser::{PrettyConfig, to_writer_pretty};
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::error::{FileFault, MAX_ENTRIES, MAX_FILE_BYTES, ProfileError, SCHEMA};
use super::model::MAX_ENTRY_BYTES;

/// The file's schema, at most `LATEST`. Another schema stops the parser at once, because the rest of the file may have any
/// form.
#[derive(Debug)]
pub(super) struct Schema<const LATEST: u64>(pub(super) u64);

impl<'de, const LATEST: u64> Deserialize<'de> for Schema<LATEST> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            schema if (SCHEMA..=LATEST).contains(&schema) => Ok(Self(schema)),
            found => Err(D::Error::custom(format!("{OTHER_SCHEMA}{found}"))),
        }
    }
}

/// A placeholder for the type of a row, which stops the parser at the first row, after the header.
#[derive(Debug)]
pub(super) struct FirstRow;

impl<'de> Deserialize<'de> for FirstRow {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom(FIRST_ROW))
    }
}

/// A row of a file.
pub(super) trait Row: DeserializeOwned {
    /// The contents of a row.
    type Item;

    /// The contents, if they are within the limits.
    fn checked(self) -> Result<Self::Item, ProfileError>;
}

/// The rows of a file with their byte offsets, which [`locate`] turns into lines.
#[derive(Debug)]
pub(super) struct Rows<H, T> {
    pub(super) header: H,
    pub(super) good: Vec<(usize, T)>,
    pub(super) bad: Vec<Offset>,
}

/// A fault whose line and column count from a byte offset.
pub(super) type Offset = (usize, FileFault);

/// Reads a file. `H` is the type of the file with [`FirstRow`] as the type of its rows.
///
/// # Errors
///
/// [`ProfileErrorKind`](super::ProfileErrorKind) `Schema`, `Header` and `TooLarge`.
pub(super) fn read_rows<H: DeserializeOwned, R: Row>(
    text: &str,
) -> Result<Rows<H, R::Item>, ProfileError> {
    let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
    if bytes > MAX_FILE_BYTES {
        return Err(ProfileError::too_many_bytes(bytes));
    }
    let mut reader = Deserializer::from_str(text).map_err(|error| bad_header(text, error))?;
    match H::deserialize(&mut reader) {
        // The list is empty.
        Ok(header) => {
            let trailing = reader.end().err();
            let bad = trailing.map(|error| (0, fault(reader.span_error(error))));
            Ok(Rows { header, good: Vec::new(), bad: bad.into_iter().collect() })
        }
        Err(ron::Error::Message(message)) if message == FIRST_ROW => {
            let list = text.len() - reader.remainder().len();
            let options = ron::Options::default()
                .with_recursion_limit(MAX_DEPTH)
                .with_default_extension(reader.extensions());
            let (good, bad) = (Vec::new(), Vec::new());
            RowReader::<H, R> { text, list, options, header: None, good, bad }.read()
        }
        Err(error) => {
            let found = match &error {
                ron::Error::Message(message) => message.strip_prefix(OTHER_SCHEMA),
                _ => None,
            };
            Err(match found.and_then(|found| found.parse().ok()) {
                Some(found) => ProfileError::schema(found),
                None => bad_header(text, reader.span_error(error)),
            })
        }
    }
}

/// A file whose rows are being read.
struct RowReader<'a, H, R: Row> {
    text: &'a str,
    /// Where the first row begins.
    list: usize,
    options: ron::Options,
    /// The file without its rows, once the end of their list is found.
    header: Option<H>,
    good: Vec<(usize, R::Item)>,
    bad: Vec<Offset>,
}

/// A row without an end: its offset, and the fault.
struct Broken(usize, Offset);

impl<'a, H: DeserializeOwned, R: Row> RowReader<'a, H, R> {
    fn read(mut self) -> Result<Rows<H, R::Item>, ProfileError> {
        let end = self.text.len();
        let mut broken = self.read_until(end, self.list).err().map(|Broken(begin, _)| begin);
        // After a broken row, each row that begins a line is read separately.
        while let Some(begin) = broken.filter(|_| !self.is_full()) {
            let next = self.row_line(begin, end).unwrap_or(end);
            if let Err(Broken(_, fault)) = self.read_until(next, begin) {
                self.bad.push(fault);
            }
            broken = (next < end).then_some(next);
        }
        if self.is_full() {
            return Err(ProfileError::too_many_entries());
        }
        let header = match self.header {
            Some(header) => header,
            None => {
                let before = self.part(0, self.list);
                let header = format!("{before}\n])");
                // Missing fields are reported where the rows begin.
                ron::from_str(&header).map_err(|error| bad_header(before, error))?
            }
        };
        Ok(Rows { header, good: self.good, bad: self.bad })
    }

    /// Reads the rows between two offsets, until there are too many.
    fn read_until(&mut self, end: usize, mut begin: usize) -> Result<(), Broken> {
        let is_last = end == self.text.len();
        while !self.is_full() {
            let part = self.part(begin, end);
            let broken = |row, error| Err(Broken(row, (begin, fault(error))));
            let reader = match Deserializer::from_str_with_options(part, &self.options) {
                Ok(reader) => reader,
                Err(error) => return broken(begin, error),
            };
            // The reader has skipped blanks and comments before the row.
            let row = end - reader.remainder().len();
            match reader.remainder().chars().next() {
                None if !is_last => return Ok(()),
                None => return broken(row, reader.span_error(ron::Error::ExpectedArrayEnd)),
                Some(']') if is_last => return self.read_end(row),
                Some(']') => {
                    return broken(row, reader.span_error(ron::Error::UnexpectedChar(']')));
                }
                Some(_) => {}
            }
            self.check_attributes(begin, row);
            let (parsed, length) = match self.value::<R>(first_bytes(part)) {
                Ok((parsed, length)) => (Ok(parsed), length),
                Err(_) => match self.value::<IgnoredAny>(part) {
                    Ok((IgnoredAny, length)) => (self.row_of(begin, row, length), length),
                    Err(error) => return broken(row, error),
                },
            };
            let next = begin + length;
            let checked = match parsed {
                // With an unbalanced bracket this row may contain the next row.
                Err(fault) if self.row_line(row, next).is_some() => {
                    return Err(Broken(row, fault));
                }
                Err(fault) => Err(fault),
                Ok(parsed) => parsed.checked().map_err(|error| (row, first_character(error))),
            };
            match checked {
                Ok(item) => self.good.push((row, item)),
                Err(fault) => self.bad.push(fault),
            }
            begin = next + usize::from(self.part(next, end).starts_with(','));
        }
        Ok(())
    }

    /// Parses a value and the blanks after it. Returns the value with its length, if a comma or the end of the
    /// list follows.
    fn value<V: DeserializeOwned>(&self, part: &str) -> Result<(V, usize), SpannedError> {
        let mut reader = Deserializer::from_str_with_options(part, &self.options)?;
        let parsed = V::deserialize(&mut reader).and_then(|value| match reader.end() {
            Ok(()) => Err(ron::Error::ExpectedComma),
            Err(ron::Error::TrailingCharacters) => match reader.remainder().chars().next() {
                Some(',' | ']') => Ok((value, part.len() - reader.remainder().len())),
                _ => Err(ron::Error::ExpectedComma),
            },
            Err(error) => Err(error),
        });
        let parsed = parsed.map_err(|error| reader.span_error(error));
        #[cfg(test)]
        work::count(part, &reader, parsed.as_ref().err());
        parsed
    }

    /// Parses a row whose length is known, unless it is too long.
    fn row_of(&self, begin: usize, row: usize, length: usize) -> Result<R, Offset> {
        let bytes = begin + length - row;
        if bytes > MAX_ENTRY_BYTES {
            let what = format_args!(
                "the entry has {bytes} bytes, the limit is {MAX_ENTRY_BYTES}: shorten it"
            );
            return Err((row, first_character(what)));
        }
        let part = self.part(begin, begin + length);
        self.options.from_str(part).map_err(|error| (begin, fault(error)))
    }

    /// Checks that there are only blanks and comments before a row. The parser would also accept attributes
    /// there, as at the start of a file.
    fn check_attributes(&mut self, begin: usize, row: usize) {
        let before = self.part(begin, row);
        if before.contains('#') && ron::from_str::<()>(&format!("()\n{before}")).is_err() {
            self.bad.push((row, first_character("attributes belong at the start of the file")));
        }
    }

    /// Reads the rest of the file, from the bracket that closes the list.
    fn read_end(&mut self, list_end: usize) -> Result<(), Broken> {
        let (before, after) = (self.part(0, self.list), self.part(list_end, self.text.len()));
        // On a line of its own, because a comment may precede the first row.
        match ron::from_str(&format!("{before}\n{after}")) {
            Ok(header) => {
                self.header = Some(header);
                Ok(())
            }
            Err(error) => {
                let mut fault = fault(error);
                fault.line = fault.line.saturating_sub(before.matches('\n').count() + 1);
                Err(Broken(list_end, (list_end, fault)))
            }
        }
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

    fn part(&self, begin: usize, end: usize) -> &'a str {
        self.text.get(begin..end).unwrap_or_default()
    }

    fn is_full(&self) -> bool {
        self.good.len() + self.bad.len() > MAX_ENTRIES
    }
}

/// At most [`MAX_ENTRY_BYTES`] of a text.
fn first_bytes(text: &str) -> &str {
    let mut ends = (MAX_ENTRY_BYTES - 3..=MAX_ENTRY_BYTES).rev();
    ends.find_map(|end| text.get(..end)).unwrap_or(text)
}

fn bad_header(text: &str, error: SpannedError) -> ProfileError {
    let fault = fault(error);
    let located = locate(text, vec![(0, fault.clone())]).pop();
    ProfileError::header(located.unwrap_or(fault))
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

/// Turns offsets into positions in the text, in order.
pub(super) fn locate(text: &str, mut bad: Vec<Offset>) -> Vec<FileFault> {
    bad.sort_by_key(|(offset, fault)| (*offset, fault.line, fault.column));
    let (mut line, mut column, mut at) = (1, 1, 0);
    let mut advance = |to| {
        let part = text.get(at..to).unwrap_or_default();
        at = to;
        let last_line = part.rfind('\n').map(|end| &part[end + 1..]);
        if last_line.is_some() {
            (line, column) = (line + part.matches('\n').count(), 1);
        }
        column += last_line.unwrap_or(part).chars().count();
        (line, column)
    };
    let mut faults = Vec::with_capacity(bad.len());
    for (offset, FileFault { line, column, message }) in bad {
        let (first_line, first_column) = advance(offset);
        let column = if line <= 1 { first_column + column.max(1) - 1 } else { column };
        faults.push(FileFault { line: first_line + line.max(1) - 1, column, message });
    }
    // The parser may have read brackets appended to the text.
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

/// The start of a line that begins a row.
pub(super) const ROW_BEGIN: &str = "(kernel:";
/// The deepest nesting of brackets. A row needs four levels.
const MAX_DEPTH: usize = 16;
/// The messages of [`Schema`] and [`FirstRow`], which reach [`read_rows`] through the parser.
const OTHER_SCHEMA: &str = "the schema is ";
const FIRST_ROW: &str = "the first row";

/// Counts the bytes that the parser reads, so that a test can tell linear from quadratic time.
#[cfg(test)]
pub(super) mod work {
    use core::cell::Cell;

    use super::{Deserializer, SpannedError};

    thread_local! {
        static PARSED: Cell<usize> = const { Cell::new(0) };
    }

    /// The bytes since the last call on this thread.
    pub(in super::super) fn take() -> usize {
        PARSED.take()
    }

    pub(super) fn count(part: &str, reader: &Deserializer<'_>, error: Option<&SpannedError>) {
        let searched_to_the_end = error.is_some_and(|error| {
            let code = &error.code;
            matches!(code, ron::Error::ExpectedStringEnd | ron::Error::UnclosedBlockComment)
        });
        let left = if searched_to_the_end { 0 } else { reader.remainder().len() };
        PARSED.set(PARSED.get() + part.len() - left);
    }
}
