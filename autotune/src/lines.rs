//! Reads and writes lines of JSON of bounded length.

use std::io::{self, BufRead, ErrorKind, Read, Write};

use serde::Serialize;

use crate::stats::count;

/// Writes `value` as a line of at most `most` bytes. Too long a line is `InvalidData`.
pub(crate) fn write_line(
    output: &mut impl Write,
    value: &impl Serialize,
    most: u64,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    if count(line.len()) > most {
        return Err(overlong(most));
    }
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

/// The next line of at most `most` bytes without its newline; `None` at the end. An invalid line is `InvalidData`, an
/// incomplete last line `UnexpectedEof`.
pub(crate) fn read_line(input: &mut impl BufRead, most: u64) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    Read::take(input, most.saturating_add(1)).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => {
            let invalid = |_| io::Error::new(ErrorKind::InvalidData, "a line is not UTF-8");
            String::from_utf8(line).map(Some).map_err(invalid)
        }
        Some(_) if count(line.len()) >= most => Err(overlong(most)),
        Some(_) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the stream ended within a line")),
    }
}

/// The start of a text, quoted.
pub(crate) fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN_CHARACTERS).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{dots}")
}

fn overlong(most: u64) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("a line is longer than {most} bytes"))
}

const SHOWN_CHARACTERS: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 1024 * 1024;

    #[test]
    fn lines_are_read_without_their_newlines() {
        let mut input = b"one\n\ntwo\n".as_slice();
        for expected in [Some("one"), Some(""), Some("two"), None, None] {
            assert_eq!(read_line(&mut input, MOST).expect("a line").as_deref(), expected);
        }
    }

    #[test]
    fn cut_overlong_and_invalid_lines_have_their_own_errors() {
        let mut written = Vec::new();
        let error = write_line(&mut written, &"x".repeat(1024 * 1024), MOST).expect_err("overlong");
        assert_eq!((error.kind(), written.len()), (ErrorKind::InvalidData, 0));
        let error = |mut line: &[u8]| {
            let error = read_line(&mut line, MOST).expect_err("invalid");
            (error.kind(), error.to_string())
        };
        let cut = "the stream ended within a line".to_owned();
        assert_eq!(error(b"half"), (ErrorKind::UnexpectedEof, cut));
        assert_eq!(error(b"\xff\n"), (ErrorKind::InvalidData, "a line is not UTF-8".to_owned()));
        let mut longest = vec![b'x'; 1024 * 1024];
        longest.push(b'\n');
        let line = read_line(&mut longest.as_slice(), MOST).expect("the longest").expect("a line");
        assert_eq!(line.len(), 1024 * 1024);
        longest.insert(0, b'x');
        let overlong = "a line is longer than 1048576 bytes".to_owned();
        assert_eq!(error(&longest), (ErrorKind::InvalidData, overlong));
    }
}
