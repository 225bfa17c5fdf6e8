//! Tokens of PTX, with positions. Blanks, comments and line markers are skipped.

use crate::error::{Position, PtxError};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A name, a register, an opcode.
    Word,
    /// A word after a dot: a directive, a modifier, a selector such as `.x`.
    Dotted,
    /// A number, in any of PTX's notations.
    Number,
    /// A string with its quotes.
    Text,
    /// Any other character.
    Punctuation(u8),
}

/// A token with its place.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// What it is.
    pub kind: TokenKind,
    /// Its bytes.
    pub text: &'a [u8],
    /// The offset of its first byte.
    pub start: usize,
    /// Its line and column.
    pub at: Position,
}

impl<'a> Token<'a> {
    /// The offset after its last byte.
    pub(crate) const fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// Whether the token is this punctuation character.
    pub fn is(&self, byte: u8) -> bool {
        self.kind == TokenKind::Punctuation(byte)
    }

    pub(crate) fn is_dotted(&self, text: &str) -> bool {
        self.kind == TokenKind::Dotted && self.text == text.as_bytes()
    }

    /// The name, if it is a word.
    pub fn word(&self) -> Option<&'a [u8]> {
        (self.kind == TokenKind::Word).then_some(self.text)
    }

    pub(crate) fn unexpected(&self, expected: &'static str) -> PtxError {
        let shown = self.text.get(..MOST_SHOWN).unwrap_or(self.text);
        PtxError::UnexpectedToken { found: lossy(shown), expected, at: self.at }
    }
}

/// Text for an error. Names are ASCII, other tokens may contain any bytes.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reads tokens one by one.
#[derive(Clone, Debug)]
pub struct Lexer<'a> {
    text: &'a [u8],
    offset: usize,
    line: u64,
    line_start: usize,
}

impl<'a> Lexer<'a> {
    /// Begins at the start of `text`.
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text, offset: 0, line: 1, line_start: 0 }
    }

    /// A lexer that continues after `token`.
    pub(crate) fn after(text: &'a [u8], token: &Token<'_>) -> Self {
        let column = usize::try_from(token.at.column).unwrap_or(1);
        let line_start = (token.start + 1).saturating_sub(column);
        Self { text, offset: token.end(), line: token.at.line, line_start }
    }

    /// The offset of the next token, or of the blanks before it.
    pub(crate) const fn offset(&self) -> usize {
        self.offset
    }

    /// The next token; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`PtxError`] at an unterminated comment or string, or a byte that PTX does not have.
    pub fn next_token(&mut self) -> Result<Option<Token<'a>>, PtxError> {
        #[cfg(test)]
        let begin = self.offset;
        self.skip()?;
        #[cfg(test)]
        work::count(self.offset - begin);
        let (start, at) = (self.offset, self.position());
        let Some((&first, rest)) = self.text.get(start..).and_then(<[u8]>::split_first) else {
            return Ok(None);
        };
        let second = rest.first().copied().unwrap_or(0);
        let (kind, end) = match first {
            b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'$' => {
                (TokenKind::Word, self.run(start + 1, is_word))
            }
            b'%' if is_word(second) => (TokenKind::Word, self.run(start + 1, is_word)),
            b'.' if is_word(second) => (TokenKind::Dotted, self.dotted(start + 1)),
            b'0'..=b'9' => {
                (TokenKind::Number, self.run(start, |byte| is_word(byte) || byte == b'.'))
            }
            b'"' => {
                self.offset = start + 1;
                self.skip_past(b"\"", at, Some("a string"))?;
                (TokenKind::Text, self.offset)
            }
            b'!'..=b'~' => (TokenKind::Punctuation(first), start + 1),
            byte => return Err(PtxError::UnexpectedByte { byte, at }),
        };
        self.offset = end;
        #[cfg(test)]
        work::count(end - start);
        let text = self.text.get(start..end).unwrap_or_default();
        Ok(Some(Token { kind, text, start, at }))
    }

    /// The next token. It is an error if the text ends, because `what`, which begins at `at`, is unterminated.
    pub(crate) fn need(&mut self, what: &'static str, at: Position) -> Result<Token<'a>, PtxError> {
        self.next_token()?.ok_or(PtxError::Unterminated { what, at })
    }

    fn position(&self) -> Position {
        let column = self.offset - self.line_start + 1;
        Position { line: self.line, column: u64::try_from(column).unwrap_or(u64::MAX) }
    }

    /// Skips blanks, comments and line markers.
    fn skip(&mut self) -> Result<(), PtxError> {
        loop {
            let (rest, at) = (self.text.get(self.offset..).unwrap_or_default(), self.position());
            match rest {
                [b'\n', ..] => {
                    self.offset += 1;
                    self.new_line();
                }
                [b' ' | b'\t' | b'\r' | b'\x0c', ..] => self.offset += 1,
                [b'/', b'/', ..] => self.skip_past(b"\n", at, None)?,
                [b'#', after @ ..] if is_line_marker(after) => self.skip_past(b"\n", at, None)?,
                [b'/', b'*', ..] => {
                    self.offset += 2;
                    self.skip_past(b"*/", at, Some("a comment"))?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Skips to the end of `end`, or of the text unless `what`, which begins at `at`, is then unterminated. A zero byte
    /// is an error, since it ends the text for the driver. A backslash has no meaning.
    fn skip_past(
        &mut self,
        end: &[u8],
        at: Position,
        what: Option<&'static str>,
    ) -> Result<(), PtxError> {
        let rest = self.text.get(self.offset..).unwrap_or_default();
        let found = rest.windows(end.len()).position(|part| part == end);
        let (skipped, _) = rest.split_at(found.map_or(rest.len(), |at| at + end.len()));
        for byte in skipped {
            if *byte == 0 {
                return Err(PtxError::UnexpectedByte { byte: 0, at: self.position() });
            }
            self.offset += 1;
            if *byte == b'\n' {
                self.new_line();
            }
        }
        match what.filter(|_| found.is_none()) {
            Some(what) => Err(PtxError::Unterminated { what, at }),
            None => Ok(()),
        }
    }

    fn new_line(&mut self) {
        self.line += 1;
        self.line_start = self.offset;
    }

    /// The end of the run of bytes from `from` on that `is_part` accepts.
    fn run(&self, from: usize, is_part: impl Fn(u8) -> bool) -> usize {
        let rest = self.text.get(from..).unwrap_or_default();
        rest.iter().position(|byte| !is_part(*byte)).map_or(self.text.len(), |end| from + end)
    }

    /// The end of a word with optional parts, such as `shared::cta`.
    fn dotted(&self, from: usize) -> usize {
        let mut end = self.run(from, is_word);
        while let Some([b':', b':', part, ..]) = self.text.get(end..)
            && is_word(*part)
        {
            end = self.run(end + 2, is_word);
        }
        end
    }
}

pub(crate) const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

/// Whether a line with this text after `#` is a line marker.
fn is_line_marker(after: &[u8]) -> bool {
    let after = after.trim_ascii_start();
    after.first().is_some_and(u8::is_ascii_digit) || after.starts_with(b"line")
}

/// The most bytes of an unexpected token in an error.
const MOST_SHOWN: usize = 40;

/// Counts the bytes that are read as tokens or skipped, in every pass.
#[cfg(test)]
pub(crate) mod work {
    use core::cell::Cell;

    thread_local! {
        static BYTES: Cell<usize> = const { Cell::new(0) };
    }

    /// The bytes since the last call on this thread.
    pub(crate) fn take() -> usize {
        BYTES.take()
    }

    pub(super) fn count(bytes: usize) {
        BYTES.set(BYTES.get() + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<&str> {
        let mut lexer = Lexer::new(text.as_bytes());
        let mut found = Vec::new();
        while let Some(token) = lexer.next_token().expect("tokens") {
            found.push(core::str::from_utf8(token.text).expect("ASCII"));
        }
        found
    }

    #[test]
    fn tokens_are_split_as_by_ptxas() {
        for (text, expected) in [
            ("mov.u32 %r1,%ctaid.x;", "mov .u32 %r1 , %ctaid .x ;"),
            ("mov/**/.u32\t%r1, %ctaid /* y */ .x\r\n;", "mov .u32 %r1 , %ctaid .x ;"),
            ("@!%p1 bra $L__BB0_1;//x\n", "@ ! %p1 bra $L__BB0_1 ;"),
            ("ld.shared::cta.v2 {a,_}", "ld .shared::cta .v2 { a , _ }"),
            ("# 1 \"a.cu\"\n #line 3\nret", "ret"),
            (".version 8.0 // \\\n.target", ".version 8.0 .target"),
            (".file 1 \"a//\\\"x", ".file 1 \"a//\\\" x"),
            (
                "0f3F800000 0x1F 1.5 a%b 5%3 A:B: [p+4]",
                "0f3F800000 0x1F 1.5 a %b 5 %3 A : B : [ p + 4 ]",
            ),
            ("/* /* */ a /**/ b /***/ c", "a b c"),
            ("x % y", "x % y"),
        ] {
            assert_eq!(tokens(text).join(" "), expected, "{text:?}");
        }
    }

    #[test]
    fn positions_count_lines_in_comments_and_strings_too() {
        let mut lexer = Lexer::new(b"a\n /*\n\n*/ b \"x\ny\" c");
        let mut at = || lexer.next_token().expect("a token").map(|it| (it.at.line, it.at.column));
        let found: Vec<_> = core::iter::from_fn(&mut at).collect();
        assert_eq!(found, [(1, 1), (4, 4), (4, 6), (5, 4)]);
    }

    #[test]
    fn unterminated_text_and_invalid_bytes_are_errors_with_their_position() {
        let error = |text: &[u8]| {
            let mut lexer = Lexer::new(text);
            loop {
                match lexer.next_token() {
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(error) => break Some(error.to_string()),
                }
            }
        };
        for (text, expected) in [
            (&b"a /* b"[..], Some("line 1, column 3: a comment does not end")),
            (b"\n\"a", Some("line 2, column 1: a string does not end")),
            (b"a\x80", Some("line 1, column 2: unexpected byte 0x80")),
            (b"a\x0bb", Some("line 1, column 2: unexpected byte 0x0b")),
            (b"a\0b", Some("line 1, column 2: unexpected byte 0x00")),
            (b"// a\0b", Some("line 1, column 5: unexpected byte 0x00")),
            (b"/* a\n\0*/", Some("line 2, column 1: unexpected byte 0x00")),
            (b"\"\0\"", Some("line 1, column 2: unexpected byte 0x00")),
            (b"// \xff\xfe\n/* \xff */ \"\xff\"", None),
            (b"// a", None),
            (b"", None),
        ] {
            assert_eq!(error(text).as_deref(), expected, "{:?}", text.escape_ascii());
        }
    }
}
