//! Declarations of variables outside functions.

use core::ops::Range;

use crate::error::PtxError;
use crate::header::{bytes_of, number};
use crate::lexer::{Lexer, Token, TokenKind};

/// `[LINKAGE] .global|.const [.attribute(...)] [.align N] [.v2|.v4] .TYPE NAME[N]... [= VALUES];`
#[derive(Debug)]
pub(crate) struct Declared<'a> {
    /// The names. A declaration with several names declares variables of one type.
    pub(crate) names: Vec<Token<'a>>,
    /// The variable's size, if there is only one variable. `None` if it is not known.
    pub(crate) bytes: Option<u64>,
    pub(crate) is_constant: bool,
    pub(crate) is_external: bool,
    /// Its offsets, with linkage and semicolon.
    pub(crate) range: Range<usize>,
}

impl<'a> Declared<'a> {
    /// Reads the declaration that follows `keyword`, which follows the words `linkage`.
    pub(crate) fn read(
        lexer: &mut Lexer<'a>,
        keyword: &Token<'a>,
        linkage: &'a [u8],
    ) -> Result<Self, PtxError> {
        let mut next = || lexer.need("the declaration", keyword.at);
        let mut names = Vec::new();
        // The size of an element, and the number of elements.
        let (mut element, mut count) = (None, Some(1_u64));
        let mut depth = 0_usize;
        let mut before = *keyword;
        let mut has_values = false;
        let end = loop {
            let token = next()?;
            match token.kind {
                TokenKind::Punctuation(b';') if depth == 0 => break token.end(),
                TokenKind::Punctuation(b'(' | b'{' | b'[') => depth += 1,
                TokenKind::Punctuation(b')' | b'}' | b']') => {
                    depth = depth.checked_sub(1).ok_or_else(|| token.unexpected("`;`"))?;
                    // The size of an array that its values give.
                    count = count.filter(|_| has_values || !before.is(b'['));
                }
                TokenKind::Punctuation(b'=') => has_values = true,
                // Names with a number each.
                TokenKind::Punctuation(b'<') => count = None,
                TokenKind::Dotted if matches!(token.text, b".entry" | b".func") => {
                    return Err(token.unexpected("`;`"));
                }
                _ if has_values || before.is_dotted(".align") => {}
                TokenKind::Dotted if depth == 0 => match token.text {
                    b".v2" => count = count.and_then(|count| count.checked_mul(2)),
                    b".v4" => count = count.and_then(|count| count.checked_mul(4)),
                    kind => element = element.or(bytes_of(kind)),
                },
                TokenKind::Number if before.is(b'[') => {
                    let size = number(token.text);
                    count = count.zip(size).and_then(|(count, size)| count.checked_mul(size));
                }
                TokenKind::Word if depth == 0 => names.push(token),
                _ => {}
            }
            before = token;
        };
        let bytes = element.zip(count).and_then(|(element, count)| element.checked_mul(count));
        Ok(Self {
            bytes: bytes.filter(|_| names.len() == 1),
            names,
            is_constant: keyword.text == b".const",
            is_external: linkage.starts_with(b".extern"),
            range: keyword.start - linkage.len()..end,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::module::Module;

    #[test]
    fn declarations_state_names_and_sizes() {
        for (text, names, bytes) in [
            (".global .align 4 .u32 counter;", &["counter"][..], Some(4)),
            (".visible .const .align 8 .b8 a[0x10] = {1, 2, b, 4};", &["a"], Some(16)),
            (".global .align 16 .v4 .f32 v[2][3];", &["v"], Some(96)),
            (".global .attribute(.managed) .align 8 .u64 m;", &["m"], Some(8)),
            (".global .u64 p[2] = {generic(q), generic(r)+8};", &["p"], Some(16)),
            (".extern .global .b8 e[];", &["e"], None),
            (".global .u32 i, j;", &["i", "j"], None),
            (".global .b32 r<4>;", &["r"], None),
            (".global .texref t;", &["t"], None),
            (".global .b64 w[0x2000000000000000];", &["w"], None),
        ] {
            let text = format!(".version 8.0\n.target sm_90\n{text}\n.entry k() {{ ret; }}\n");
            let module = Module::read(text.as_bytes()).expect(&text);
            let [variable] = &module.variables[..] else { panic!("{text}") };
            let found: Vec<&[u8]> = variable.names.iter().map(|name| name.text).collect();
            assert_eq!(
                (found, variable.bytes),
                (names.iter().map(|name| name.as_bytes()).collect(), bytes),
                "{text}"
            );
            assert!(text[variable.range.clone()].starts_with('.'));
            assert!(text[variable.range.clone()].ends_with(';'));
            assert_eq!(variable.is_external, text.contains(".extern"), "{text}");
            assert_eq!(module.items.len(), 1);
        }
    }

    #[test]
    fn a_declaration_that_would_hide_a_function_is_an_error() {
        for rest in [
            ".global .u32 a .entry k() { ret; }",
            ".global .u32 a",
            ".const .u32 a};",
            ".global .u32 a = {1;",
        ] {
            let text = format!(".version 8.0\n.target sm_90\n{rest}");
            assert!(Module::read(text.as_bytes()).is_err(), "{rest}");
        }
    }
}
