//! Steps over RON's tokens: brackets, strings, comments.

/// Where scanning cannot go on, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) at: usize,
    pub(super) what: String,
}

/// A place in a text; it only ever stands between characters.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) const fn text(&self) -> &'a str {
        self.text
    }

    pub(super) const fn at(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) const fn go_to(&mut self, at: usize) {
        self.at = at;
    }

    pub(super) const fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    pub(super) fn broken(&self, what: impl Into<String>) -> Broken {
        Broken { at: self.at, what: what.into() }
    }

    /// Reads letters, digits and underscores; none is an empty word.
    pub(super) fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
        let length = rest.bytes().take_while(is_word).count();
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    /// Steps over blanks and comments.
    pub(super) fn skip_trivia(&mut self) -> Result<(), Broken> {
        loop {
            match self.peek() {
                Some(byte) if byte.is_ascii_whitespace() => self.at += 1,
                Some(b'/') => self.skip_comment()?,
                _ => return Ok(()),
            }
        }
    }

    /// Steps over one value, up to the comma or bracket that ends it, which is left.
    pub(super) fn skip_value(&mut self) -> Result<&'a str, Broken> {
        let start = self.at;
        let mut open: Vec<(u8, usize)> = Vec::new();
        while let Some(byte) = self.peek() {
            if self.at - start > MAX_VALUE_BYTES {
                return Err(Broken { at: start, what: long("entry") });
            }
            match byte {
                b',' if open.is_empty() => break,
                b')' | b']' | b'}' if open.is_empty() => break,
                b')' | b']' | b'}' => self.close(&mut open, byte)?,
                b'(' | b'[' | b'{' if open.len() == MAX_DEPTH => {
                    return Err(self.broken("brackets are nested deeper than 16"));
                }
                b'(' | b'[' | b'{' => {
                    open.push((byte, self.at));
                    self.at += 1;
                }
                _ => self.skip_token(byte)?,
            }
        }
        match open.last() {
            Some((byte, at)) => {
                Err(Broken { at: *at, what: format!("`{}` is never closed", char::from(*byte)) })
            }
            None => Ok(self.text.get(start..self.at).unwrap_or_default()),
        }
    }

    fn close(&mut self, open: &mut Vec<(u8, usize)>, byte: u8) -> Result<(), Broken> {
        let opening = open.pop().map_or(0, |(opening, _)| opening);
        if !matches!((opening, byte), (b'(', b')') | (b'[', b']') | (b'{', b'}')) {
            let (opening, closing) = (char::from(opening), char::from(byte));
            return Err(
                self.broken(format!("`{closing}` stands where `{opening}` is to be closed"))
            );
        }
        self.at += 1;
        Ok(())
    }

    fn skip_token(&mut self, byte: u8) -> Result<(), Broken> {
        match byte {
            b'"' => self.skip_string(),
            b'\'' => self.skip_character(),
            b'/' => self.skip_comment(),
            byte if byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80 => {
                match self.word() {
                    "r" | "br" => self.skip_raw_string(),
                    _ => Ok(()),
                }
            }
            _ => {
                self.at += 1;
                Ok(())
            }
        }
    }

    /// A string ends on its line: so one that is not closed costs no more than that.
    fn skip_string(&mut self) -> Result<(), Broken> {
        let line = self.window().lines().next().unwrap_or_default();
        let mut escaped = true;
        let end = line.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        match end {
            None if line.len() < self.window().len() => {
                Err(self.broken("the string is not closed on its line"))
            }
            end => self.step_over(end, 1, "string"),
        }
    }

    /// A raw string's hashes and quotes; hashes without a quote are a raw identifier's.
    fn skip_raw_string(&mut self) -> Result<(), Broken> {
        let rest = self.rest();
        let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
        if hashes > MAX_HASHES {
            return Err(self.broken("a raw string has more than 16 hashes"));
        }
        if rest.as_bytes().get(hashes) != Some(&b'"') {
            self.at += hashes;
            return Ok(());
        }
        self.at += hashes + 1;
        let end = format!("\"{}", "#".repeat(hashes));
        let found = self.window().find(&end);
        self.step_over(found, end.len(), "raw string")
    }

    fn skip_character(&mut self) -> Result<(), Broken> {
        let mut characters = self.rest().char_indices().skip(1);
        let first = characters.next().map(|(_, character)| character);
        // What follows a backslash belongs to it, be it a quote.
        if first == Some('\\') {
            characters.next();
        }
        let end = characters.take(MAX_CHARACTER).find(|(_, character)| *character == '\'');
        let end = end.map(|(at, _)| at);
        self.step_over(end, 1, "character")
    }

    fn skip_comment(&mut self) -> Result<(), Broken> {
        if self.rest().starts_with("//") {
            let end = self.rest().find('\n').unwrap_or(self.rest().len());
            self.at += end;
            return Ok(());
        }
        if !self.rest().starts_with("/*") {
            return Err(self.broken("`/` begins no comment"));
        }
        let window = self.window();
        let (mut depth, mut at) = (0_usize, 0);
        loop {
            match window.as_bytes().get(at..at + 2) {
                Some(b"/*") => (depth, at) = (depth + 1, at + 2),
                Some(b"*/") if depth == 1 => return self.step_over(Some(at), 2, "comment"),
                Some(b"*/") => (depth, at) = (depth - 1, at + 2),
                Some(_) => at += 1,
                None => return self.step_over(None, 2, "comment"),
            }
        }
    }

    fn step_over(
        &mut self,
        end: Option<usize>,
        length: usize,
        token: &'static str,
    ) -> Result<(), Broken> {
        match end {
            Some(end) => {
                self.at += end + length;
                Ok(())
            }
            None if self.rest().len() > MAX_VALUE_BYTES => Err(self.broken(long(token))),
            None => Err(self.broken(format!("the {token} is never closed"))),
        }
    }

    /// As much of the text as a token may take.
    fn window(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.floor_char_boundary(MAX_VALUE_BYTES);
        rest.get(..end).unwrap_or_default()
    }

    /// Reads the end of a file after its list.
    pub(super) fn expect_end(&mut self) -> Result<(), Broken> {
        self.skip_trivia()?;
        if self.eat(b',') {
            self.skip_trivia()?;
        }
        if !self.eat(b')') {
            return Err(self.broken("after the list of entries the file is closed by `)`"));
        }
        self.skip_trivia()?;
        match self.peek() {
            Some(_) => Err(self.broken("something follows the end of the file's data")),
            None => Ok(()),
        }
    }

    /// Goes to the next line after `from` that begins with `anchor`; the answer is whether there
    /// is one.
    pub(super) fn go_to_line(&mut self, from: usize, anchor: &str) -> bool {
        let mut at = from;
        while let Some(next) = self.text.get(at..).and_then(|rest| rest.find('\n')) {
            at += next + 1;
            let line = self.text.get(at..).unwrap_or_default();
            let indented = line.trim_start_matches([' ', '\t']);
            if indented.starts_with(anchor) {
                self.at = at + (line.len() - indented.len());
                return true;
            }
        }
        false
    }
}

fn long(what: &str) -> String {
    format!("the {what} is longer than {MAX_VALUE_BYTES} bytes")
}

/// Brackets within brackets. An entry needs four.
const MAX_DEPTH: usize = 16;
/// Bytes of an entry or of one of its tokens; the largest that is ever written has a third.
const MAX_VALUE_BYTES: usize = 65_536;
/// Hashes of a raw string.
const MAX_HASHES: usize = 16;
/// Characters between the quotes of a character, such as `\u{10ffff}`.
const MAX_CHARACTER: usize = 12;
