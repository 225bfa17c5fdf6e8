//! The block indices and grid sizes that a function body reads, and its calls.

use std::collections::HashMap;

use crate::error::{Position, PtxError};
use crate::header::Problem;
use crate::lexer::{Lexer, Token, TokenKind};
use crate::refusal::Reason;
use crate::special::{Read, Values, is_special, reads, refused_instruction, refused_register};
use crate::statement::{Instruction, Statement, StatementKind, Statements};

/// A function that is or may be called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callee<'a> {
    pub(crate) name: &'a [u8],
    /// Where it is called.
    pub(crate) at: Position,
    /// Whether the call is by name. Otherwise it is by address.
    pub(crate) is_direct: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Body<'a> {
    pub(crate) reads: Values,
    /// The values that the body reads before its first label, branch or call, and the offset of this label, branch or
    /// call.
    pub(crate) early: Option<(Values, usize)>,
    pub(crate) labels: Vec<&'a [u8]>,
    pub(crate) calls: Vec<Callee<'a>>,
    /// The first reason why a function with this body cannot be rewritten, nor its callers.
    pub(crate) problem: Option<Problem<'a>>,
    /// The first global variable that the body declares.
    pub(crate) variable: Option<Problem<'a>>,
}

impl<'a> Body<'a> {
    /// Reads the body that `open` begins, and returns a lexer after it.
    pub(crate) fn read(text: &'a [u8], open: &Token<'a>) -> Result<(Self, Lexer<'a>), PtxError> {
        let mut statements = Statements::new(text, open);
        let mut reader = Reader::default();
        while let Some(statement) = statements.next_statement()? {
            reader.add(&statement);
        }
        Ok((reader.finish(), statements.lexer))
    }
}

#[derive(Default)]
struct Reader<'a> {
    body: Body<'a>,
    /// The label before this statement.
    label: Option<&'a [u8]>,
    /// The functions of each `.calltargets`, by its label.
    targets: HashMap<&'a [u8], Vec<&'a [u8]>>,
    /// Calls by address: the label of the list or prototype, and the call.
    indirect: Vec<(&'a [u8], Token<'a>)>,
}

impl<'a> Reader<'a> {
    fn add(&mut self, statement: &Statement<'_, 'a>) {
        let (label, tokens) = (self.label.take(), statement.tokens);
        let Some(first) = tokens.first() else { return };
        match &statement.kind {
            StatementKind::Other => {}
            StatementKind::Label => {
                self.end_early(first.start);
                self.check_names(tokens);
                self.label = Some(first.text);
                self.body.labels.push(first.text);
            }
            StatementKind::Directive => {
                self.check_names(tokens);
                self.directive(label, tokens);
            }
            StatementKind::Instruction(instruction) => {
                if !instruction.continues() {
                    self.end_early(first.start);
                }
                self.instruction(instruction, tokens);
            }
        }
    }

    /// Notes the first place `at` where execution may leave the sequence of statements, or enter it.
    fn end_early(&mut self, at: usize) {
        let reads = self.body.reads;
        self.body.early.get_or_insert((reads, at));
    }

    fn report(&mut self, reason: Reason, token: &Token<'a>) {
        self.body.problem.get_or_insert(Problem::new(reason, token));
    }

    fn check_names(&mut self, tokens: &[Token<'a>]) {
        if let Some(token) = tokens.iter().find(|token| is_special(token)) {
            self.report(Reason::HiddenRegister, token);
        }
    }

    fn directive(&mut self, label: Option<&'a [u8]>, tokens: &[Token<'a>]) {
        let Some(first) = tokens.first() else { return };
        match first.text {
            b".calltargets" => {
                let names = tokens.iter().filter_map(Token::word);
                self.targets.entry(label.unwrap_or_default()).or_default().extend(names);
            }
            b".global" | b".const" => {
                let name =
                    tokens.iter().find(|token| token.kind == TokenKind::Word).unwrap_or(first);
                self.body.variable.get_or_insert(Problem::new(Reason::OwnVariable, name));
            }
            _ => {}
        }
    }

    fn instruction(&mut self, instruction: &Instruction<'_, 'a>, tokens: &[Token<'a>]) {
        let Instruction { opcode, operands, .. } = *instruction;
        if let Some(reason) = refused_instruction(opcode.text) {
            self.report(reason, &opcode);
        }
        for token in tokens {
            if let Some(reason) = refused_register(token) {
                self.report(reason, token);
            }
        }
        for read in reads(tokens) {
            self.body.reads = self.body.reads.with(read.values());
            if let Some(reason) = refused_read(instruction, read) {
                self.report(reason, &tokens[read.first]);
            }
        }
        if opcode.text != b"call" {
            return;
        }
        match Call::of(tokens, operands) {
            None => self.report(Reason::UnknownCall, &opcode),
            Some(Call { target, list: None, .. }) => {
                let Token { text: name, at, .. } = target;
                self.body.calls.push(Callee { name, at, is_direct: true });
            }
            Some(Call { target, list: Some(list), .. }) => {
                self.indirect.push((list.text, target));
            }
        }
    }

    fn finish(mut self) -> Body<'a> {
        self.end_early(usize::MAX);
        let mut stated = Vec::new();
        for (list, call) in core::mem::take(&mut self.indirect) {
            if self.targets.contains_key(list) {
                stated.push((list, call.at));
            } else {
                self.report(Reason::IndirectCall, &call);
            }
        }
        // Each list counts once, however often it is used.
        for (list, at) in stated {
            let names = self.targets.insert(list, Vec::new()).unwrap_or_default();
            let callee = |name| Callee { name, at, is_direct: false };
            self.body.calls.extend(names.into_iter().map(callee));
        }
        self.body
    }
}

/// Why the register of `read` cannot be replaced by a 32-bit register, or a vector by three registers and zero.
fn refused_read(instruction: &Instruction<'_, '_>, read: Read) -> Option<Reason> {
    let Instruction { opcode, modifiers, operands } = instruction;
    let source = modifiers.last().map(|modifier| modifier.text).unwrap_or_default();
    let is_vector = modifiers.iter().any(|modifier| modifier.text == b".v4");
    match (opcode.text, source) {
        _ if read.first < *operands => Some(Reason::UnknownRead),
        (b"mov" | b"cvt", b".u32" | b".s32" | b".b32") if is_vector == read.axis.is_none() => None,
        // Two packed registers.
        (b"mov", b".b64") if read.axis.is_some() => None,
        (b"mov" | b"cvt", b".u16" | b".s16" | b".b16" | b".u8" | b".s8" | b".b8") => {
            Some(Reason::NarrowRead)
        }
        _ => Some(Reason::UnknownRead),
    }
}

/// `call [(RETURNED),] TARGET [, (ARGUMENTS)] [, LIST];`
pub(crate) struct Call<'a> {
    pub(crate) target: Token<'a>,
    /// The offset of the closing parenthesis of the arguments.
    pub(crate) arguments_end: Option<usize>,
    pub(crate) has_arguments: bool,
    /// The label of a prototype or of a list of functions, for calls by address.
    list: Option<Token<'a>>,
}

impl<'a> Call<'a> {
    /// The call whose operands begin at token `index`; `None` if it has another form.
    pub(crate) fn of(tokens: &[Token<'a>], mut index: usize) -> Option<Self> {
        let is = |index: usize, byte| tokens.get(index).is_some_and(|token| token.is(byte));
        let closing = |from: usize| (from..tokens.len()).find(|index| is(*index, b')'));
        if is(index, b'(') {
            index = closing(index)? + 1;
            is(index, b',').then_some(())?;
            index += 1;
        }
        let target = *tokens.get(index).filter(|token| token.kind == TokenKind::Word)?;
        let mut call = Call { target, arguments_end: None, has_arguments: false, list: None };
        index += 1;
        if is(index, b',') && is(index + 1, b'(') {
            let end = closing(index + 1)?;
            call.arguments_end = Some(tokens.get(end)?.start);
            call.has_arguments = end > index + 2;
            index = end + 1;
        }
        if is(index, b',') {
            call.list = Some(*tokens.get(index + 1).filter(|token| token.kind == TokenKind::Word)?);
            index += 2;
        }
        (is(index, b';') && index + 1 == tokens.len()).then_some(call)
    }
}
