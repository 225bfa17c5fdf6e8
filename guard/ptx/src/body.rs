//! The block indices and grid sizes that a function body reads, and its calls.

use std::collections::HashMap;

use crate::error::{Position, PtxError};
use crate::header::Problem;
use crate::lexer::{Kind, Lexer, Token};
use crate::refusal::Reason;
use crate::special::{Read, Values, is_special, reads, refused_instruction, refused_register};
use crate::statement::{Statement, Statements};

/// A function that is or may be called, and the position of the call.
pub(crate) type Callee<'a> = (&'a [u8], Position);

#[derive(Debug, Default)]
pub(crate) struct Body<'a> {
    pub(crate) reads: Values,
    pub(crate) calls: Vec<Callee<'a>>,
    /// Functions that may be called by address.
    pub(crate) by_address: Vec<Callee<'a>>,
    /// The first reason why a function with this body cannot be rewritten, nor its callers.
    pub(crate) problem: Option<Problem<'a>>,
    /// The first global variable that the body declares.
    pub(crate) variable: Option<Problem<'a>>,
}

impl<'a> Body<'a> {
    /// Reads the body that `open` begins, and returns a lexer after it.
    pub(crate) fn read(text: &'a [u8], open: &Token<'a>) -> Result<(Self, Lexer<'a>), PtxError> {
        let mut statements = Statements::of(text, open);
        let mut reader = Reader::default();
        while let Some(statement) = statements.next()? {
            reader.add(statement, &statements.tokens)?;
        }
        Ok((reader.finish(), statements.into_lexer()))
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
    fn add(&mut self, statement: Statement, tokens: &[Token<'a>]) -> Result<(), PtxError> {
        let label = self.label.take();
        match statement {
            Statement::Other => {}
            Statement::Label => {
                self.check_names(tokens);
                self.label = tokens.first().map(|label| label.text);
            }
            Statement::Directive => {
                self.check_names(tokens);
                self.directive(label, tokens);
            }
            Statement::Instruction => self.instruction(tokens)?,
        }
        Ok(())
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
                let name = tokens.iter().find(|token| token.kind == Kind::Word).unwrap_or(first);
                self.body.variable.get_or_insert(Problem::new(Reason::OwnVariable, name));
            }
            _ => {}
        }
    }

    fn instruction(&mut self, tokens: &[Token<'a>]) -> Result<(), PtxError> {
        let parts = Parts::of(tokens)?;
        if let Some(reason) = refused_instruction(parts.opcode.text, parts.modifiers) {
            self.report(reason, &parts.opcode);
        }
        for token in tokens {
            if let Some(reason) = refused_register(token) {
                self.report(reason, token);
            }
        }
        for read in reads(tokens) {
            self.body.reads = self.body.reads.with(read.values());
            if let (Err(reason), Some(token)) = (parts.check(read), tokens.get(read.first)) {
                self.report(reason, token);
            }
        }
        if parts.opcode.text == b"call" {
            self.call(&parts, tokens);
        }
        Ok(())
    }

    fn call(&mut self, parts: &Parts<'_, 'a>, tokens: &[Token<'a>]) {
        match Call::of(tokens, parts.operands) {
            None => self.report(Reason::UnknownCall, &parts.opcode),
            Some(Call { target, list: None, .. }) => {
                self.body.calls.push((target.text, target.at));
            }
            Some(Call { target, list: Some(list), .. }) => {
                self.indirect.push((list.text, target));
            }
        }
    }

    fn finish(mut self) -> Body<'a> {
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
            self.body.by_address.extend(names.into_iter().map(|name| (name, at)));
        }
        self.body
    }
}

/// An instruction, taken apart.
pub(crate) struct Parts<'t, 'a> {
    pub(crate) opcode: Token<'a>,
    modifiers: &'t [Token<'a>],
    /// The index of the first token after opcode and modifiers.
    pub(crate) operands: usize,
}

impl<'t, 'a> Parts<'t, 'a> {
    /// Takes `[@[!]PREDICATE] OPCODE[.MODIFIER]... OPERANDS;` apart.
    pub(crate) fn of(tokens: &'t [Token<'a>]) -> Result<Self, PtxError> {
        let mut index = 0;
        if tokens.first().is_some_and(|token| token.is(b'@')) {
            let is_negated = tokens.get(1).is_some_and(|token| token.is(b'!'));
            index = if is_negated { 3 } else { 2 };
            index += usize::from(tokens.get(index).is_some_and(|token| token.kind == Kind::Dotted));
        }
        match tokens.get(index).or(tokens.last()) {
            Some(opcode) if opcode.kind == Kind::Word => {
                let after = tokens.get(index + 1..).unwrap_or_default();
                let count = after.iter().take_while(|token| token.kind == Kind::Dotted).count();
                let modifiers = after.get(..count).unwrap_or_default();
                Ok(Self { opcode: *opcode, modifiers, operands: index + 1 + count })
            }
            Some(other) => Err(other.unexpected("an instruction")),
            None => Err(PtxError::NotPtx),
        }
    }

    /// Checks that the register of `read` can be replaced by a 32-bit register, or a vector by three and zero.
    fn check(&self, read: Read) -> Result<(), Reason> {
        let mut types = self.modifiers.iter().rev().map(|modifier| modifier.text);
        let source = types.next().unwrap_or_default();
        let is_vector = self.modifiers.iter().any(|modifier| modifier.text == b".v4");
        match (self.opcode.text, source) {
            _ if read.first < self.operands => Err(Reason::UnknownRead),
            (b"mov" | b"cvt", b".u32" | b".s32" | b".b32") => {
                if is_vector == read.axis.is_none() {
                    Ok(())
                } else {
                    Err(Reason::UnknownRead)
                }
            }
            // Two packed registers.
            (b"mov", b".b64") if read.axis.is_some() => Ok(()),
            (b"mov" | b"cvt", b".u16" | b".s16" | b".b16" | b".u8" | b".s8" | b".b8") => {
                Err(Reason::NarrowRead)
            }
            _ => Err(Reason::UnknownRead),
        }
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
        let target = *tokens.get(index).filter(|token| token.kind == Kind::Word)?;
        let mut call = Call { target, arguments_end: None, has_arguments: false, list: None };
        index += 1;
        if is(index, b',') && is(index + 1, b'(') {
            let end = closing(index + 1)?;
            call.arguments_end = Some(tokens.get(end)?.start);
            call.has_arguments = end > index + 2;
            index = end + 1;
        }
        if is(index, b',') {
            call.list = Some(*tokens.get(index + 1).filter(|token| token.kind == Kind::Word)?);
            index += 2;
        }
        (is(index, b';') && index + 1 == tokens.len()).then_some(call)
    }
}
