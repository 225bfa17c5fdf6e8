//! Headers of entries and functions: name, parameters and directives before the body.

use core::ops::Range;

use crate::error::{Position, PtxError};
use crate::lexer::{Lexer, Token, TokenKind};
use crate::refusal::Reason;
use crate::special::{is_special, refused_directive};

/// Why a function cannot have forms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem<'a> {
    pub(crate) reason: Reason,
    pub(crate) subject: &'a [u8],
    pub(crate) at: Position,
}

impl<'a> Problem<'a> {
    pub(crate) fn new(reason: Reason, token: &Token<'a>) -> Self {
        Self { reason, subject: token.text, at: token.at }
    }
}

/// The declaration or definition of an entry or function, up to its body.
#[derive(Debug)]
pub(crate) struct Header<'a> {
    pub(crate) name: Token<'a>,
    pub(crate) parameters: Parameters,
    /// The opening brace of the body. `None` for a declaration.
    pub(crate) open: Option<Token<'a>>,
    /// The offset after the header, that is after the brace, or the semicolon of a declaration.
    pub(crate) end: usize,
    pub(crate) problem: Option<Problem<'a>>,
}

/// Words that begin another declaration.
const BEGINS_ANOTHER: [&[u8]; 5] = [b".entry", b".func", b".visible", b".weak", b".extern"];

/// The list of parameters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters {
    /// The offsets of the list, without its parentheses. `None` without a list.
    pub(crate) list: Option<Range<usize>>,
    pub(crate) count: usize,
    /// The bytes of all parameters, each at its alignment.
    pub(crate) bytes: u64,
}

impl<'a> Header<'a> {
    /// Reads the header that follows `keyword`, which is `.entry` or `.func`.
    pub(crate) fn read(lexer: &mut Lexer<'a>, keyword: &Token<'a>) -> Result<Self, PtxError> {
        let mut reader = Reader { lexer, at: keyword.at, problem: None };
        let mut parameters = None;
        let mut token = reader.next()?;
        // `.attribute(...)`, then the return value of a function.
        while token.kind == TokenKind::Dotted {
            if BEGINS_ANOTHER.contains(&token.text) {
                return Err(token.unexpected("a name"));
            }
            reader.check_directive(&token);
            token = reader.next()?;
            if token.is(b'(') {
                reader.skip_parentheses()?;
                token = reader.next()?;
            }
        }
        if token.is(b'(') {
            reader.list(&token)?;
            token = reader.next()?;
        }
        let name = token;
        if name.kind != TokenKind::Word {
            return Err(name.unexpected("a name"));
        }
        reader.check_name(&name);
        token = reader.next()?;
        if token.is(b'(') {
            parameters = Some(reader.list(&token)?);
            token = reader.next()?;
        }
        let mut is_pragma = false;
        loop {
            match token.kind {
                TokenKind::Punctuation(b'{') => break,
                TokenKind::Punctuation(b';') if is_pragma => is_pragma = false,
                TokenKind::Punctuation(b';') => break,
                TokenKind::Dotted => {
                    is_pragma = token.text == b".pragma";
                    reader.check_directive(&token);
                }
                TokenKind::Number | TokenKind::Text | TokenKind::Punctuation(b',') => {}
                _ => return Err(token.unexpected("a directive, `{` or `;`")),
            }
            token = reader.next()?;
        }
        let open = token.is(b'{').then_some(token);
        let parameters = parameters.unwrap_or_default();
        Ok(Self { name, parameters, open, end: token.end(), problem: reader.problem })
    }
}

struct Reader<'l, 'a> {
    lexer: &'l mut Lexer<'a>,
    /// The keyword, for errors.
    at: Position,
    /// The first problem.
    problem: Option<Problem<'a>>,
}

impl<'a> Reader<'_, 'a> {
    fn next(&mut self) -> Result<Token<'a>, PtxError> {
        self.lexer.need("the declaration", self.at)
    }

    fn report(&mut self, reason: Reason, token: &Token<'a>) {
        self.problem.get_or_insert(Problem::new(reason, token));
    }

    fn check_directive(&mut self, token: &Token<'a>) {
        if let Some(reason) = refused_directive(token.text) {
            self.report(reason, token);
        }
    }

    fn check_name(&mut self, token: &Token<'a>) {
        if is_special(token) {
            self.report(Reason::HiddenRegister, token);
        }
    }

    /// Skips to the end of an open parenthesis.
    fn skip_parentheses(&mut self) -> Result<(), PtxError> {
        let mut depth = 1_usize;
        while depth > 0 {
            let token = self.next()?;
            depth += usize::from(token.is(b'('));
            depth -= usize::from(token.is(b')'));
        }
        Ok(())
    }

    /// Reads the list of parameters that `open` begins.
    fn list(&mut self, open: &Token<'a>) -> Result<Parameters, PtxError> {
        let mut parameters = Parameters::default();
        let mut parameter = Parameter::default();
        loop {
            let token = self.next()?;
            let is_end = token.is(b')');
            if !is_end && !token.is(b',') {
                self.check_name(&token);
                parameter.add(token)?;
                continue;
            }
            match parameter.subject {
                // An empty list.
                None if is_end && parameters.count == 0 => {}
                None => return Err(token.unexpected("a parameter")),
                Some(subject) => {
                    parameters.count += 1;
                    match parameter.placed_at(parameters.bytes) {
                        Some(end) => parameters.bytes = end,
                        None => self.report(Reason::UnknownParameter, &subject),
                    }
                }
            }
            if is_end {
                parameters.list = Some(open.end()..token.start);
                return Ok(parameters);
            }
            parameter = Parameter::default();
        }
    }
}

/// The declaration of one parameter, such as `.param .u64 .ptr .global .align 8 name` or
/// `.param .align 4 .b8 name[12]`.
#[derive(Default)]
struct Parameter<'a> {
    /// Its name, or its first token before that.
    subject: Option<Token<'a>>,
    element_bytes: Option<u64>,
    align: u64,
    elements: Option<u64>,
    dimensions: usize,
    /// After `.ptr`, an alignment applies to the pointer's target.
    is_pointer: bool,
    /// Whether the last token was `.align`.
    is_alignment: bool,
}

impl<'a> Parameter<'a> {
    fn add(&mut self, token: Token<'a>) -> Result<(), PtxError> {
        let is_alignment = core::mem::replace(&mut self.is_alignment, token.is_dotted(".align"));
        match token.kind {
            TokenKind::Dotted if token.text == b".ptr" => self.is_pointer = true,
            TokenKind::Dotted => self.element_bytes = self.element_bytes.or(bytes_of(token.text)),
            TokenKind::Number if is_alignment && self.is_pointer => {}
            TokenKind::Number if is_alignment => {
                self.align = number(token.text).unwrap_or(u64::MAX);
            }
            TokenKind::Number => self.elements = number(token.text),
            TokenKind::Punctuation(b'[') => self.dimensions += 1,
            TokenKind::Punctuation(b']') => {}
            TokenKind::Word => self.subject = Some(token),
            _ => return Err(token.unexpected("a parameter")),
        }
        self.subject.get_or_insert(token);
        Ok(())
    }

    /// The end of the parameter, if the parameters before it end at `offset`. `None` if its size is unknown.
    fn placed_at(&self, offset: u64) -> Option<u64> {
        let element = self.element_bytes?;
        let elements = match self.dimensions {
            0 => 1,
            1 => self.elements?,
            _ => return None,
        };
        let align = self.align.max(element);
        align.is_power_of_two().then_some(())?;
        offset.checked_next_multiple_of(align)?.checked_add(element.checked_mul(elements)?)
    }
}

pub(crate) fn bytes_of(kind: &[u8]) -> Option<u64> {
    match kind {
        b".b8" | b".u8" | b".s8" => Some(1),
        b".b16" | b".u16" | b".s16" | b".f16" => Some(2),
        b".b32" | b".u32" | b".s32" | b".f32" | b".f16x2" => Some(4),
        b".b64" | b".u64" | b".s64" | b".f64" => Some(8),
        b".b128" => Some(16),
        _ => None,
    }
}

/// An integer literal of PTX: decimal, octal after `0`, hexadecimal after `0x`, binary after `0b`, each with an
/// optional `U`.
pub fn number(text: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(text).ok()?;
    let text = text.strip_suffix('U').unwrap_or(text);
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (text.get(2..)?, 16),
        [b'0', b'b' | b'B', ..] => (text.get(2..)?, 2),
        [b'0', _, ..] => (text.get(1..)?, 8),
        _ => (text, 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text: &str) -> Result<Header<'_>, PtxError> {
        let mut lexer = Lexer::new(text.as_bytes());
        let keyword = lexer.next_token().expect("a token").expect("a keyword");
        Header::read(&mut lexer, &keyword)
    }

    #[test]
    fn parameters_are_laid_out_as_the_driver_does() {
        for (list, count, bytes) in [
            ("", 0, 0),
            ("()", 0, 0),
            ("(.param .u64 a)", 1, 8),
            ("(.param .u32 a, .param .u64 b)", 2, 16),
            ("(.param .u8 a, .param .align 8 .b8 b[12], .param .u16 c)", 3, 22),
            ("(.param .u32 a, .param .u64 .ptr .global .align 64 b)", 2, 16),
            ("(.param .u32 a, .param .u32 .align 16 b)", 2, 20),
            ("(.param .b8 a[0x10], .param .b8 b[010], .param .b8 c[0b11U])", 3, 27),
            ("(.param .f16 a, .param .b128 b)", 2, 32),
        ] {
            let text = format!(".entry k{list} .maxntid 32, 1, 1 {{");
            let header = header(&text).expect("a header");
            let Parameters { count: found, bytes: size, .. } = header.parameters;
            assert_eq!((found, size), (count, bytes), "{list}");
            assert!(header.problem.is_none(), "{list}: {:?}", header.problem);
            assert_eq!((header.name.text, header.end), (&b"k"[..], text.len()));
        }
    }

    #[test]
    fn a_parameter_of_unknown_size_is_a_problem() {
        for parameter in [
            ".param .texref a",
            ".param .b8 a[]",
            ".param .b8 a[99999999999999999999]",
            ".param .b64 a[0x2000000000000000]",
            ".param .align 3 .b8 a[4]",
            ".param .b8 a[2][3]",
            ".param a",
        ] {
            let text = format!(".entry k(.param .u32 x, {parameter}) {{");
            let problem = header(&text).expect("a header").problem.expect("a problem");
            assert_eq!((problem.reason, problem.subject), (Reason::UnknownParameter, &b"a"[..]));
        }
    }

    #[test]
    fn an_invalid_declaration_is_an_error() {
        for (text, expected) in [
            (".entry", "line 1, column 1: the declaration does not end"),
            (".entry {", "line 1, column 8: expected a name, found `{`"),
            (".entry k(", "line 1, column 1: the declaration does not end"),
            (".entry k(,", "line 1, column 10: expected a parameter, found `,`"),
            (".entry k(.param .u32 a,)", "line 1, column 24: expected a parameter, found `)`"),
            (".entry k((", "line 1, column 10: expected a parameter, found `(`"),
            (".entry k() x", "line 1, column 12: expected a directive, `{` or `;`, found `x`"),
        ] {
            assert_eq!(header(text).expect_err("no header").to_string(), expected, "{text}");
        }
    }
}
