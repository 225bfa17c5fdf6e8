//! An entry's instructions as basic blocks.

use core::ops::Range;
use std::collections::HashMap;

use gridguard_ptx::PtxError;
use gridguard_ptx::syntax::{StatementKind, Statements, Token, TokenKind};

use super::sizes::Reason;

/// A body in basic blocks. Registers are numbered.
#[derive(Default)]
pub(super) struct Code<'a> {
    pub(super) tokens: Vec<Token<'a>>,
    /// The register number of each token that is a word. Names that are not registers have numbers, too.
    pub(super) ids: Vec<u32>,
    pub(super) instructions: Vec<Instruction>,
    pub(super) blocks: Vec<Block>,
    /// The names of the registers.
    pub(super) registers: Vec<&'a [u8]>,
    /// The names by scope; the innermost is last. Only inner scopes hide names.
    scopes: Vec<HashMap<&'a [u8], u32>>,
    /// Prefixes of names such as `%r<8>` that an inner scope declares.
    prefixes: Vec<Vec<&'a [u8]>>,
    /// Why the control flow is unknown.
    pub(super) problem: Option<Reason>,
}

/// An instruction.
#[derive(Clone)]
pub(super) struct Instruction {
    /// Its tokens from the opcode to the semicolon.
    pub(super) tokens: Range<usize>,
    /// The index of the first token after opcode and modifiers.
    pub(super) operands: usize,
    pub(super) guard: Option<Guard>,
    /// File and line of `.loc`.
    pub(super) location: Option<(u64, u64)>,
}

/// A predicate, and whether the instruction runs if it is true or false.
#[derive(Clone, Copy)]
pub(super) struct Guard {
    pub(super) register: u32,
    pub(super) expected: bool,
}

#[derive(Default)]
pub(super) struct Block {
    pub(super) instructions: Range<usize>,
    /// The target of the branch at the block's end, and whether the branch depends on a predicate.
    pub(super) targets: Vec<usize>,
    pub(super) guard: Option<Guard>,
    /// Whether control may continue with the next block.
    pub(super) falls_through: bool,
}

/// Blocks with labels that are not resolved yet.
struct Open<'a> {
    block: Block,
    labels: Vec<&'a [u8]>,
}

impl<'a> Code<'a> {
    pub(crate) fn read(text: &'a [u8], open: &Token<'a>) -> Result<Self, PtxError> {
        let mut code =
            Self { scopes: vec![HashMap::new()], prefixes: vec![Vec::new()], ..Self::default() };
        let mut statements = Statements::new(text, open);
        let (mut blocks, mut names, mut lists) = (Vec::new(), HashMap::new(), HashMap::new());
        let (mut current, mut location, mut label) = (Open::new(0), None, None);
        while let Some(statement) = statements.next_statement()? {
            let tokens = statement.tokens;
            let Some(first) = tokens.first() else { continue };
            match &statement.kind {
                StatementKind::Other if first.is(b'{') => code.open_scope(),
                StatementKind::Other if first.is(b'}') => code.close_scope(),
                StatementKind::Other => location = location_of(tokens),
                StatementKind::Label => {
                    label = Some(first.text);
                    let here = code.instructions.len();
                    if current.block.instructions.start != here {
                        current.end(here, true, &mut blocks);
                    }
                    names.insert(first.text, blocks.len());
                }
                StatementKind::Directive if first.text == b".branchtargets" => {
                    let words: Vec<_> = tokens.iter().filter_map(Token::word).collect();
                    lists.insert(label.unwrap_or_default(), words);
                }
                StatementKind::Directive if first.text == b".reg" => code.declare(tokens),
                StatementKind::Directive => {}
                StatementKind::Instruction(instruction) => {
                    let guard = code.guard(tokens);
                    let begin = code.tokens.len();
                    let before = instruction.operands - instruction.modifiers.len() - 1;
                    code.tokens.extend_from_slice(&tokens[before..]);
                    for token in &tokens[before..] {
                        let id = token.word().map_or(u32::MAX, |name| code.register(name));
                        code.ids.push(id);
                    }
                    let operands = begin + instruction.operands - before;
                    let opcode = instruction.opcode.text;
                    code.instructions.push(Instruction {
                        tokens: begin..code.tokens.len(),
                        operands,
                        guard,
                        location,
                    });
                    if matches!(opcode, b"bra" | b"brx" | b"ret" | b"exit" | b"trap") {
                        let words = code.tokens[operands..].iter().filter_map(Token::word);
                        match opcode {
                            b"bra" => current.labels.extend(words),
                            b"brx" => {
                                match words.clone().next_back().and_then(|name| lists.get(name)) {
                                    Some(list) => current.labels.extend(list.iter().copied()),
                                    None => code.problem = Some(Reason::ControlFlow),
                                }
                            }
                            _ => {}
                        }
                        current.block.guard = guard;
                        let falls_through = guard.is_some() && opcode != b"brx";
                        current.end(code.instructions.len(), falls_through, &mut blocks);
                    }
                }
            }
        }
        current.end(code.instructions.len(), false, &mut blocks);
        let last = blocks.len() - 1;
        for Open { mut block, labels } in blocks {
            for label in labels {
                match names.get(label) {
                    Some(target) => block.targets.push((*target).min(last)),
                    None => code.problem = Some(Reason::ControlFlow),
                }
            }
            code.blocks.push(block);
        }
        Ok(code)
    }

    /// The number of a register.
    fn register(&mut self, name: &'a [u8]) -> u32 {
        for depth in (0..self.scopes.len()).rev() {
            let hides =
                depth == 0 || self.prefixes[depth].iter().any(|prefix| is_numbered(name, prefix));
            if let Some(known) = self.scopes[depth].get(name) {
                return *known;
            }
            if hides {
                return self.add(depth, name);
            }
        }
        0
    }

    fn add(&mut self, depth: usize, name: &'a [u8]) -> u32 {
        let id = u32::try_from(self.registers.len()).unwrap_or(u32::MAX);
        self.registers.push(name);
        self.scopes[depth].insert(name, id);
        id
    }

    fn guard(&mut self, tokens: &[Token<'a>]) -> Option<Guard> {
        let (first, rest) = tokens.split_first()?;
        first.is(b'@').then_some(())?;
        let expected = !rest.first()?.is(b'!');
        let name = rest.get(usize::from(!expected))?.word()?;
        Some(Guard { register: self.register(name), expected })
    }

    fn open_scope(&mut self) {
        self.scopes.push(HashMap::new());
        self.prefixes.push(Vec::new());
    }

    fn close_scope(&mut self) {
        if self.scopes.len() > 1 {
            self.scopes.pop();
            self.prefixes.pop();
        }
    }

    /// `.reg .b32 name, %r<8>;` in an inner scope.
    fn declare(&mut self, tokens: &[Token<'a>]) {
        let depth = self.scopes.len() - 1;
        if depth == 0 {
            return;
        }
        for (at, token) in tokens.iter().enumerate() {
            let Some(name) = token.word() else { continue };
            if tokens.get(at + 1).is_some_and(|next| next.is(b'<')) {
                self.prefixes[depth].push(name);
            } else {
                self.add(depth, name);
            }
        }
    }
}

impl<'a> Open<'a> {
    fn new(start: usize) -> Self {
        let block = Block { instructions: start..start, ..Block::default() };
        Self { block, labels: Vec::new() }
    }

    fn end(&mut self, end: usize, falls_through: bool, blocks: &mut Vec<Self>) {
        let mut closed = core::mem::replace(self, Self::new(end));
        closed.block.instructions.end = end;
        closed.block.falls_through = falls_through;
        blocks.push(closed);
    }
}

fn is_numbered(name: &[u8], prefix: &[u8]) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// File and line of `.loc FILE LINE COLUMN`.
fn location_of(tokens: &[Token<'_>]) -> Option<(u64, u64)> {
    let number = |at: usize| -> Option<u64> {
        let token = tokens.get(at).filter(|token| token.kind == TokenKind::Number)?;
        core::str::from_utf8(token.text).ok()?.parse().ok()
    };
    Some((number(1)?, number(2)?))
}

/// Names are ASCII in any PTX that a compiler wrote.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
