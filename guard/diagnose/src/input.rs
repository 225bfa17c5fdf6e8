//! Splits bytes into lines, and long lines into overlapping pieces, in bounded memory.
//!
//! Pieces overlap so that no message is cut in two. Text that a carriage return would overwrite on
//! a terminal is a piece of its own.

use std::io::{self, BufRead, Read};

/// Bytes of a line that are scanned at once.
pub const MAX_LINE_BYTES: usize = 64 * 1024;
/// Overlap of the pieces of a longer line, in bytes: more than any message has.
const OVERLAP_BYTES: usize = 8 * 1024;

/// The value of two bytes of UTF-16, in its byte order. PowerShell redirects output as UTF-16.
type Unit = fn([u8; 2]) -> u16;

/// Calls `take` with every piece of `input` and whether it ends a line.
///
/// # Errors
///
/// The error of reading `input`.
pub(crate) fn read(mut input: impl BufRead, take: impl FnMut(&str, bool)) -> io::Result<()> {
    let mut head = Vec::new();
    // The longest byte order mark.
    input.by_ref().take(3).read_to_end(&mut head)?;
    let (utf_16, mark): (Option<Unit>, usize) = match head.as_slice() {
        [0xff, 0xfe, ..] => (Some(u16::from_le_bytes), 2),
        [0xfe, 0xff, ..] => (Some(u16::from_be_bytes), 2),
        [0xef, 0xbb, 0xbf] => (None, 3),
        _ => (None, 0),
    };
    let mut pieces = Pieces { bytes: Vec::new(), is_open: false, take };
    // The bytes of a character whose end is not read yet.
    let mut begun = Vec::new();
    let rest = head.get(mark..).unwrap_or_default();
    let mut input = rest.chain(input);
    loop {
        let buffer = match input.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if buffer.is_empty() {
            // Half of a character.
            if begun.len() > 1 {
                pieces.push("\u{fffd}".as_bytes());
            }
            pieces.finish();
            return Ok(());
        }
        match utf_16 {
            None => pieces.push(buffer),
            Some(unit) => {
                begun.extend_from_slice(buffer);
                pieces.push(decode(&mut begun, unit).as_bytes());
            }
        }
        let used = buffer.len();
        input.consume(used);
    }
}

/// The piece that is being read.
struct Pieces<T> {
    bytes: Vec<u8>,
    /// Whether the line has begun, even if it is empty so far.
    is_open: bool,
    take: T,
}

impl<T: FnMut(&str, bool)> Pieces<T> {
    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.is_open = true;
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let free = MAX_LINE_BYTES.saturating_sub(self.bytes.len());
            let upto = end.unwrap_or(bytes.len()).min(free);
            let (piece, rest) = bytes.split_at(upto);
            self.bytes.extend_from_slice(piece);
            bytes = rest;
            match rest.first() {
                Some(b'\n') => self.emit(true),
                Some(b'\r') => self.emit(false),
                Some(_) => {
                    self.overlap();
                    continue;
                }
                None => return,
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
    }

    fn emit(&mut self, ends_line: bool) {
        if ends_line || !self.bytes.is_empty() {
            (self.take)(&String::from_utf8_lossy(&self.bytes), ends_line);
        }
        self.bytes.clear();
        self.is_open &= !ends_line;
    }

    /// Emits a full piece, and begins the next one with its end.
    fn overlap(&mut self) {
        let (_, end) = self.bytes.split_at(self.bytes.len().saturating_sub(OVERLAP_BYTES));
        let end = end.to_vec();
        self.emit(false);
        self.bytes = end;
    }

    fn finish(&mut self) {
        if self.is_open {
            self.emit(true);
        }
    }
}

/// Decodes UTF-16, and keeps the bytes of a character whose end is missing.
fn decode(bytes: &mut Vec<u8>, unit: Unit) -> String {
    let (pairs, _) = bytes.as_chunks();
    let mut units: Vec<u16> = pairs.iter().copied().map(unit).collect();
    // A high surrogate waits for the low one.
    units.pop_if(|unit| (0xd800..0xdc00).contains(unit));
    bytes.drain(..2 * units.len());
    String::from_utf16_lossy(&units)
}

/// The first `bytes` of `text`, or fewer to end at a character.
pub(crate) fn truncated(text: &str, bytes: usize) -> &str {
    (0..=bytes.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

/// `text`, or its beginning and `…` in at most `bytes`.
pub(crate) fn shortened(text: &str, bytes: usize) -> String {
    const MARK: &str = "\u{2026}";
    if text.len() <= bytes {
        return text.to_owned();
    }
    truncated(text, bytes.saturating_sub(MARK.len())).to_owned() + MARK
}

/// `line` without escape sequences and with plain quotes; other control characters become spaces.
pub(crate) fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => skip_escape(&mut rest),
            // UTF-16 that was read as another encoding.
            '\0' => {}
            '\u{2018}' | '\u{2019}' => text.push('\''),
            '\u{201c}' | '\u{201d}' => text.push('"'),
            c if c.is_control() => text.push(' '),
            c => text.push(c),
        }
    }
    text
}

/// Skips the rest of an escape sequence: `[31m`, `]0;title` up to its end, or one character.
fn skip_escape(rest: &mut core::str::Chars<'_>) {
    match rest.next() {
        Some('[') => {
            rest.find(|c| ('@'..='~').contains(c));
        }
        Some(']') => {
            rest.find(|c| matches!(c, '\u{7}' | '\\'));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &[u8]) -> Vec<(String, bool)> {
        let mut pieces = Vec::new();
        read(bytes, |text, ends| pieces.push((text.to_owned(), ends))).expect("memory can be read");
        pieces
    }

    fn lines(bytes: &[u8]) -> Vec<String> {
        pieces(bytes).into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn lines_end_with_a_newline_or_the_input() {
        assert_eq!(lines(b""), [""; 0]);
        assert_eq!(lines(b"\n"), [""]);
        assert_eq!(lines(b"a\n\nb"), ["a", "", "b"]);
        assert_eq!(lines(b"a"), lines(b"a\n"));
    }

    #[test]
    fn a_carriage_return_ends_a_piece_and_not_the_line() {
        let found = pieces(b"1 %\r2 %\rfailed\r\nb");
        let ends: Vec<bool> = found.iter().map(|(_, ends)| *ends).collect();
        assert_eq!(lines(b"1 %\r2 %\rfailed\r\nb"), ["1 %", "2 %", "failed", "", "b"]);
        assert_eq!(ends, [false, false, false, true, true]);
    }

    #[test]
    fn a_long_line_is_split_into_overlapping_pieces() {
        let mut long = vec![b'x'; MAX_LINE_BYTES - 4];
        long.extend_from_slice(b"message");
        let found = pieces(&long);
        assert_eq!(found.len(), 2);
        assert!(found[1].0.contains("message") && found[1].0.len() < OVERLAP_BYTES + 8);
        assert_eq!((found[0].1, found[1].1), (false, true));
    }

    #[test]
    fn byte_order_marks_are_understood() {
        assert_eq!(lines(b"\xef\xbb\xbfab\ncd"), ["ab", "cd"]);
        let wide = |swap: bool| {
            let units = "\u{feff}a\u{1f600}\nb".encode_utf16();
            units.flat_map(|it| if swap { it.to_be_bytes() } else { it.to_le_bytes() }).collect()
        };
        for bytes in [wide(false), wide(true)] {
            let bytes: Vec<u8> = bytes;
            assert_eq!(lines(&bytes), ["a\u{1f600}", "b"]);
            // In buffers of any length.
            let mut found = Vec::new();
            let input = io::BufReader::with_capacity(1, bytes.as_slice());
            read(input, |text, _| found.push(text.to_owned())).expect("memory can be read");
            assert_eq!(found, ["a\u{1f600}", "b"]);
        }
    }

    #[test]
    fn escape_sequences_and_control_characters_are_removed() {
        assert_eq!(plain("\u{1b}[1;31mCUDA\u{1b}[0m error\u{1b}]0;title\u{7}!"), "CUDA error!");
        assert_eq!(plain("a\tb\u{7}c\0d\u{1b}"), "a b cd");
    }
}
