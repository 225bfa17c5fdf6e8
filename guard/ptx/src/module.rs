//! The entries and functions of a text.

use std::collections::{HashMap, HashSet};

use crate::body::Body;
use crate::error::{NEWEST_MAJOR, PtxError};
use crate::header::Header;
use crate::lexer::{Lexer, Token, TokenKind, lossy};
use crate::variable::Declared;

/// The parts of a text that matter for rewriting it.
#[derive(Debug, Default)]
pub(crate) struct Module<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) version: (u32, u32),
    pub(crate) target: &'a [u8],
    /// Declarations and definitions, in the order of the text.
    pub(crate) items: Vec<Item<'a>>,
    /// Entries and functions, in the order of their first occurrence.
    pub(crate) functions: Vec<Function<'a>>,
    ids: HashMap<&'a [u8], usize>,
    /// The variables that it declares outside functions.
    pub(crate) variables: Vec<Declared<'a>>,
    /// Words of debug sections and other sections, which may be labels of functions.
    pub(crate) section_words: HashSet<&'a [u8]>,
}

/// The declaration or definition of an entry or a function.
#[derive(Debug)]
pub(crate) struct Item<'a> {
    /// The number of the function.
    pub(crate) function: usize,
    pub(crate) is_entry: bool,
    /// The offset of the linkage before the keyword, such as `.visible`.
    pub(crate) start: usize,
    /// The offset of the keyword.
    pub(crate) keyword: usize,
    pub(crate) header: Header<'a>,
    /// The offset after it.
    pub(crate) end: usize,
}

/// An entry or a function, which may be declared elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a [u8],
    /// The number of the item that defines it, and its body.
    definition: Option<(usize, Body<'a>)>,
    /// The function that this name is an alias of.
    alias_of: Option<usize>,
    /// Whether the declaration or definition is an entry. `None` if there is neither.
    is_entry: Option<bool>,
}

impl<'a> Module<'a> {
    /// Reads `text`, once from its start to its end.
    pub(crate) fn read(text: &'a [u8]) -> Result<Self, PtxError> {
        let mut lexer = Lexer::new(text);
        let mut module = Self { text, ..Self::default() };
        module.first_directives(&mut lexer)?;
        // The outermost open block, the depth of the token in it, and the linkage before the token.
        let (mut open, mut depth, mut linkage) = (None, 0_usize, None);
        while let Some(token) = lexer.next_token()? {
            let begin = linkage.take();
            match token.kind {
                TokenKind::Dotted => match token.text {
                    b".visible" | b".weak" | b".extern" | b".common" => {
                        linkage = Some(begin.unwrap_or(token.start));
                    }
                    b".entry" | b".func" => {
                        if let Some(open) = &open {
                            return Err(unclosed(open));
                        }
                        lexer = module.item(lexer, &token, begin)?;
                    }
                    b".section" => module.section(&mut lexer, &token)?,
                    b".alias" => module.alias(&mut lexer, &token)?,
                    b".global" | b".const" if depth == 0 => {
                        let start = begin.unwrap_or(token.start);
                        let linkage = text.get(start..token.start).unwrap_or_default();
                        module.variables.push(Declared::read(&mut lexer, &token, linkage)?);
                    }
                    _ => {}
                },
                TokenKind::Punctuation(b'{') => {
                    open.get_or_insert(token);
                    depth += 1;
                }
                TokenKind::Punctuation(b'}') => {
                    depth =
                        depth.checked_sub(1).ok_or_else(|| token.unexpected("a declaration"))?;
                    open = open.filter(|_| depth > 0);
                }
                _ => {}
            }
        }
        open.map_or(Ok(module), |open| Err(unclosed(&open)))
    }

    /// The number of the function called `name`, or of the function that it is an alias of.
    pub(crate) fn resolve(&self, name: &[u8]) -> Option<usize> {
        self.ids.get(name).map(|id| self.aliased(*id))
    }

    /// The function that `id` is an alias of, or itself.
    pub(crate) fn aliased(&self, id: usize) -> usize {
        self.functions.get(id).and_then(|function| function.alias_of).unwrap_or(id)
    }

    /// The item that defines the function `id`, and its body.
    pub(crate) fn definition(&self, id: usize) -> Option<(&Item<'a>, &Body<'a>)> {
        let (item, body) = self.functions.get(id)?.definition.as_ref()?;
        Some((self.items.get(*item)?, body))
    }

    /// Reads `.version MAJOR.MINOR` and `.target NAME` at the start of the text.
    fn first_directives(&mut self, lexer: &mut Lexer<'a>) -> Result<(), PtxError> {
        let version = lexer.next_token()?.filter(|token| token.is_dotted(".version"));
        let number = lexer.next_token()?.filter(|token| token.kind == TokenKind::Number);
        let directive = lexer.next_token()?.filter(|token| token.is_dotted(".target"));
        let target = lexer.next_token()?.filter(|token| token.kind == TokenKind::Word);
        let (Some(_), Some(number), Some(_), Some(target)) = (version, number, directive, target)
        else {
            return Err(PtxError::NotPtx);
        };
        let text = lossy(number.text);
        let (major, minor) = text.split_once('.').ok_or(PtxError::NotPtx)?;
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) if major <= NEWEST_MAJOR => {
                (self.version, self.target) = ((major, minor), target.text);
                Ok(())
            }
            _ => Err(PtxError::UnknownVersion { version: text }),
        }
    }

    fn item(
        &mut self,
        mut lexer: Lexer<'a>,
        keyword: &Token<'a>,
        linkage: Option<usize>,
    ) -> Result<Lexer<'a>, PtxError> {
        let header = Header::read(&mut lexer, keyword)?;
        let id = self.id(header.name.text);
        let is_entry = keyword.text == b".entry";
        let function = self.functions.get_mut(id);
        let is_defined = is_entry || header.open.is_some();
        let is_alias = function.as_ref().is_some_and(|function| function.alias_of.is_some());
        let known = function.and_then(|function| function.is_entry.replace(is_entry));
        if known.is_some_and(|known| known != is_entry) || is_alias && is_defined {
            return Err(defined_twice(&header.name));
        }
        let mut end = header.end;
        if let Some(open) = &header.open {
            let (body, behind) = Body::read(self.text, open)?;
            lexer = behind;
            end = lexer.offset();
            let number = self.items.len();
            let function = self.functions.get_mut(id);
            if function.and_then(|function| function.definition.replace((number, body))).is_some() {
                return Err(defined_twice(&header.name));
            }
        }
        let start = linkage.unwrap_or(keyword.start);
        self.items.push(Item {
            function: id,
            is_entry,
            start,
            keyword: keyword.start,
            header,
            end,
        });
        Ok(lexer)
    }

    /// `.section NAME { ... }`
    fn section(&mut self, lexer: &mut Lexer<'a>, keyword: &Token<'a>) -> Result<(), PtxError> {
        let mut next = || lexer.need("the section", keyword.at);
        let mut token = next()?;
        while !token.is(b'{') {
            if !matches!(token.kind, TokenKind::Word | TokenKind::Dotted) {
                return Err(token.unexpected("a name or `{`"));
            }
            token = next()?;
        }
        loop {
            token = next()?;
            match token.kind {
                TokenKind::Word => {
                    self.section_words.insert(token.text);
                }
                TokenKind::Punctuation(b'{') => return Err(token.unexpected("a value")),
                TokenKind::Punctuation(b'}') => return Ok(()),
                _ => {}
            }
        }
    }

    /// `.alias NAME, FUNCTION;`
    fn alias(&mut self, lexer: &mut Lexer<'a>, keyword: &Token<'a>) -> Result<(), PtxError> {
        let mut next = || lexer.need("the directive", keyword.at);
        let (alias, comma, function) = (next()?, next()?, next()?);
        if !comma.is(b',') {
            return Err(comma.unexpected("`,`"));
        }
        let name = |token: &Token<'a>| token.word().ok_or_else(|| token.unexpected("a name"));
        let (id, function) = (self.id(name(&alias)?), self.id(name(&function)?));
        if let Some(known) = self.functions.get_mut(id) {
            if known.is_entry == Some(true) || known.definition.is_some() {
                return Err(defined_twice(&alias));
            }
            known.alias_of = Some(function);
        }
        Ok(())
    }

    fn id(&mut self, name: &'a [u8]) -> usize {
        *self.ids.entry(name).or_insert_with(|| {
            self.functions.push(Function { name, ..Function::default() });
            self.functions.len() - 1
        })
    }
}

fn defined_twice(name: &Token<'_>) -> PtxError {
    PtxError::DefinedTwice { name: lossy(name.text), at: name.at }
}

fn unclosed(open: &Token<'_>) -> PtxError {
    PtxError::Unterminated { what: "a block", at: open.at }
}
