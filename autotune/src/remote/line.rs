//! Lines between processes, of bounded length.

use std::io::{self, BufRead, Read};

/// The longest line, its end not counted.
pub(super) const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Why there is no next line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It is longer than any that is meant to be.
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// The other side ended within it.
    #[error("the other side ended within a line")]
    Cut,
    /// It is no UTF-8.
    #[error("a line is not text")]
    NotText,
    /// It could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The next line without its end; `None` where there is no more.
pub(super) fn read_line(input: &mut impl BufRead) -> Result<Option<String>, LineError> {
    let most = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut line = Vec::new();
    Read::take(input, most).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => String::from_utf8(line).map(Some).map_err(|_| LineError::NotText),
        Some(_) if line.len() >= MAX_LINE_BYTES => Err(LineError::TooLong),
        Some(_) => Err(LineError::Cut),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_by_one_without_their_ends() {
        let mut input = b"one\n\ntwo\n".as_slice();
        for expected in [Some("one"), Some(""), Some("two"), None, None] {
            assert_eq!(read_line(&mut input).expect("a line").as_deref(), expected);
        }
    }

    #[test]
    fn a_line_that_is_cut_too_long_or_no_text_is_told_apart() {
        assert!(matches!(read_line(&mut b"half".as_slice()), Err(LineError::Cut)));
        assert!(matches!(read_line(&mut b"\xff\n".as_slice()), Err(LineError::NotText)));
        let mut longest = vec![b'x'; MAX_LINE_BYTES];
        longest.push(b'\n');
        let line = read_line(&mut longest.as_slice()).expect("the longest").expect("a line");
        assert_eq!(line.len(), MAX_LINE_BYTES);
        longest.insert(0, b'x');
        assert!(matches!(read_line(&mut longest.as_slice()), Err(LineError::TooLong)));
    }
}
