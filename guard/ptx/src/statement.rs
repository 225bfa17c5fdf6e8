//! The statements of a function's body.

use crate::error::PtxError;
use crate::lexer::{Lexer, Token, TokenKind};

/// A statement of a body.
#[derive(Debug)]
pub struct Statement<'t, 'a> {
    /// Its tokens, with its semicolon or colon.
    pub tokens: &'t [Token<'a>],
    /// What it is.
    pub kind: StatementKind<'t, 'a>,
}

/// What a statement is.
#[derive(Debug)]
pub enum StatementKind<'t, 'a> {
    /// `{`, `}` or `.loc`.
    Other,
    /// A label and its colon.
    Label,
    /// A directive up to its semicolon, such as a declaration.
    Directive,
    /// An instruction up to its semicolon.
    Instruction(Instruction<'t, 'a>),
}

/// `[@[!]PREDICATE] OPCODE[.MODIFIER]... OPERANDS;`
#[derive(Debug)]
pub struct Instruction<'t, 'a> {
    /// The first part of its name, such as `ld`.
    pub opcode: Token<'a>,
    /// The other parts, such as `.global` and `.u32`.
    pub modifiers: &'t [Token<'a>],
    /// The index of the first token after opcode and modifiers.
    pub operands: usize,
}

impl<'t, 'a> Instruction<'t, 'a> {
    fn of(tokens: &'t [Token<'a>]) -> Result<Self, PtxError> {
        let is = |index: usize, byte| tokens.get(index).is_some_and(|token| token.is(byte));
        let mut index = match (is(0, b'@'), is(1, b'!')) {
            (false, _) => 0,
            (true, is_negated) => 2 + usize::from(is_negated),
        };
        let is_dotted = |token: &&Token<'_>| token.kind == TokenKind::Dotted;
        index += usize::from(index > 0 && tokens.get(index).as_ref().is_some_and(is_dotted));
        let opcode = tokens.get(index).or(tokens.last()).ok_or(PtxError::NotPtx)?;
        if opcode.kind != TokenKind::Word {
            return Err(opcode.unexpected("an instruction"));
        }
        let after = tokens.get(index + 1..).unwrap_or_default();
        let (modifiers, _) = after.split_at(after.iter().take_while(is_dotted).count());
        Ok(Self { opcode: *opcode, modifiers, operands: index + 1 + modifiers.len() })
    }

    /// Whether execution always continues with the next statement.
    pub(crate) fn continues(&self) -> bool {
        ![&b"bra"[..], b"brx", b"call", b"ret", b"exit"].contains(&self.opcode.text)
    }
}

/// Reads the statements of one body, whose opening brace was read.
#[derive(Debug)]
pub struct Statements<'a> {
    pub(crate) lexer: Lexer<'a>,
    /// The opening brace, for errors.
    open: Token<'a>,
    /// Number of open blocks, including this body.
    depth: usize,
    /// A token that was read ahead.
    next: Option<Token<'a>>,
    /// The tokens of the last statement.
    tokens: Vec<Token<'a>>,
}

impl<'a> Statements<'a> {
    /// The statements of the body that `open` begins.
    pub fn new(text: &'a [u8], open: &Token<'a>) -> Self {
        let lexer = Lexer::after(text, open);
        Self { lexer, open: *open, depth: 1, next: None, tokens: Vec::new() }
    }

    /// The next statement. `None` at the end of the body.
    ///
    /// # Errors
    ///
    /// [`PtxError`] where the text is no statement of PTX.
    pub fn next_statement(&mut self) -> Result<Option<Statement<'_, 'a>>, PtxError> {
        self.tokens.clear();
        if self.depth == 0 {
            return Ok(None);
        }
        let first = self.take()?;
        let mut kind = StatementKind::Other;
        match first.kind {
            TokenKind::Punctuation(b'{') => self.depth += 1,
            TokenKind::Punctuation(b'}') if self.depth == 1 => {
                self.depth = 0;
                return Ok(None);
            }
            TokenKind::Punctuation(b'}') => self.depth -= 1,
            TokenKind::Dotted if first.text == b".loc" => self.location()?,
            TokenKind::Dotted => {
                self.until_semicolon()?;
                kind = StatementKind::Directive;
            }
            TokenKind::Word if self.take_if(b':')? => kind = StatementKind::Label,
            TokenKind::Word | TokenKind::Punctuation(b'@') => {
                self.until_semicolon()?;
                kind = StatementKind::Instruction(Instruction::of(&self.tokens)?);
            }
            _ => return Err(first.unexpected("a statement")),
        }
        Ok(Some(Statement { tokens: &self.tokens, kind }))
    }

    /// The next token, which belongs to no statement yet.
    fn read(&mut self) -> Result<Token<'a>, PtxError> {
        match self.next.take() {
            Some(token) => Ok(token),
            None => self.lexer.need("the body", self.open.at),
        }
    }

    /// The next token of the statement.
    fn take(&mut self) -> Result<Token<'a>, PtxError> {
        let token = self.read()?;
        if let Some(first) = self.tokens.first()
            && self.tokens.len() >= MOST_TOKENS
        {
            return Err(PtxError::StatementTooLong { limit: MOST_TOKENS, at: first.at });
        }
        self.tokens.push(token);
        Ok(token)
    }

    /// Takes the next token if it is `byte`.
    fn take_if(&mut self, byte: u8) -> Result<bool, PtxError> {
        let token = self.read()?;
        if token.is(byte) {
            self.tokens.push(token);
        } else {
            self.next = Some(token);
        }
        Ok(token.is(byte))
    }

    /// Braces within are vectors and initial values.
    fn until_semicolon(&mut self) -> Result<(), PtxError> {
        let mut depth = 0_usize;
        loop {
            let token = self.take()?;
            match token.kind {
                TokenKind::Punctuation(b'{') => depth += 1,
                TokenKind::Punctuation(b'}') if depth == 0 => return Err(token.unexpected("`;`")),
                TokenKind::Punctuation(b'}') => depth -= 1,
                TokenKind::Punctuation(b';') if depth == 0 => return Ok(()),
                _ => {}
            }
        }
    }

    /// `.loc FILE LINE COLUMN [, function_name LABEL [+ OFFSET]] [, inlined_at FILE LINE COLUMN]`, which
    /// has no semicolon.
    fn location(&mut self) -> Result<(), PtxError> {
        self.numbers()?;
        while self.take_if(b',')? {
            let attribute = self.take()?;
            match attribute.text {
                b"inlined_at" => self.numbers()?,
                b"function_name" => {
                    self.take()?;
                    if self.take_if(b'+')? {
                        self.take()?;
                    }
                }
                _ => return Err(attribute.unexpected("`function_name` or `inlined_at`")),
            }
        }
        Ok(())
    }

    fn numbers(&mut self) -> Result<(), PtxError> {
        for _ in 0..3 {
            let token = self.take()?;
            if token.kind != TokenKind::Number {
                return Err(token.unexpected("a number"));
            }
        }
        Ok(())
    }
}

/// The most tokens of a statement. A few hundred are usual; a jump table has one for each case.
const MOST_TOKENS: usize = 1 << 18;
