//! Writes the forms of entries, and functions with added parameters, after their originals.

use core::ops::Range;
use std::collections::HashSet;

use crate::body::{Call, Parts};
use crate::error::PtxError;
use crate::lexer::{Token, lossy};
use crate::module::{Item, Module};
use crate::names::Names;
use crate::report::{ALIGNMENT, Form};
use crate::special::{Quantity, Values, reads};
use crate::statement::{Statement, Statements};
use crate::usage::Usage;
use crate::values;

pub(crate) struct Writer<'m, 'a> {
    module: &'m Module<'a>,
    usage: &'m Usage<'a>,
    names: &'m Names,
    out: Vec<u8>,
    /// The offset in the text up to which it was copied.
    copied: usize,
}

/// A variant of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Entry(Form),
    /// A function that takes block indices and grid sizes as parameters.
    Function,
}

/// The call of a function that takes values as parameters.
struct VariantCall<'a> {
    call: Call<'a>,
    /// The number of the function.
    id: usize,
    values: Values,
}

impl<'m, 'a> Writer<'m, 'a> {
    pub(crate) fn new(module: &'m Module<'a>, usage: &'m Usage<'a>, names: &'m Names) -> Self {
        Self { module, usage, names, out: Vec::new(), copied: 0 }
    }

    /// Writes the text, with forms of the entries and variants of the functions that `has_forms` names.
    pub(crate) fn write(mut self, has_forms: &[bool]) -> Result<Vec<u8>, PtxError> {
        let text = self.module.text;
        let items = || self.module.items.iter().filter(|item| self.has_variant(item, has_forms));
        let added = |item: &Item<'_>| 2 * (item.end - item.start + MORE_BYTES);
        self.out.reserve(text.len() + items().map(added).sum::<usize>());
        for item in &self.module.items {
            if !self.has_variant(item, has_forms) {
                continue;
            }
            let id = self.module.aliased(item.function);
            self.copy_to(item.end);
            if item.is_entry {
                self.variant(item, id, Variant::Entry(Form::Shifted))?;
                self.variant(item, id, Variant::Entry(Form::Folded))?;
            } else {
                self.variant(item, id, Variant::Function)?;
            }
            self.copied = item.end;
        }
        self.copy_to(text.len());
        Ok(self.out)
    }

    /// Whether a variant of `item` follows it. A declaration of a function has no variant if it follows the
    /// definition, for example for an alias.
    fn has_variant(&self, item: &Item<'_>, has_forms: &[bool]) -> bool {
        let id = self.module.aliased(item.function);
        if item.header.open.is_some() || !has_forms[id] {
            return has_forms[id];
        }
        let definition = self.module.functions[id].definition.as_ref();
        let follows = |at: usize| self.module.items[at].keyword > item.keyword;
        !item.is_entry && definition.is_some_and(|(at, _)| follows(*at))
    }

    /// Writes the declaration or definition `item` once more.
    fn variant(&mut self, item: &Item<'a>, id: usize, variant: Variant) -> Result<(), PtxError> {
        let values = self.usage.reads[id];
        let original = lossy(self.module.functions[id].name);
        let (name, added) = match variant {
            Variant::Entry(form) => {
                let parameter = self.names.parameter();
                let bytes = form.parameter_bytes();
                let added = format!("\n\t.param .align {ALIGNMENT} .b8 {parameter}[{bytes}]\n");
                (self.names.entry(&original, form), added)
            }
            Variant::Function => {
                let all: Vec<String> = values
                    .iter()
                    .map(|(quantity, axis)| {
                        format!("\n\t.param .b32 {}", self.names.value(quantity, axis))
                    })
                    .collect();
                (self.names.function(&original), all.join(",") + "\n")
            }
        };
        self.push("\n\n");
        // Functions are only called from this text.
        self.copied = if item.is_entry { item.start } else { item.keyword };
        self.copy_to(item.header.name.start);
        self.push(&name);
        self.copied = item.header.name.end();
        match &item.header.parameters.list {
            Some(list) => {
                self.copy_to(list.end);
                self.push(if item.header.parameters.count > 0 { "," } else { "" });
                self.push(&added);
            }
            None => self.push(&format!("({added})")),
        }
        self.copy_to(item.header.end);
        if let Some(open) = &item.header.open {
            self.body(open, values, variant)?;
        }
        self.copy_to(item.end);
        Ok(())
    }

    /// Writes the body that `open` begins, which was copied.
    fn body(&mut self, open: &Token<'a>, all: Values, variant: Variant) -> Result<(), PtxError> {
        let labels = self.labels(open)?;
        self.push("\n");
        self.push(&match variant {
            Variant::Entry(form) => {
                // ptxas keeps values that are computed here in uniform registers.
                let early = self.early_reads(open)?.only(Quantity::BlockIndex);
                values::declare(self.names, all) + &values::compute(self.names, form, early)
            }
            Variant::Function => values::load(self.names, all),
        });
        let mut is_early = true;
        let mut statements = Statements::of(self.module.text, open);
        while let Some(statement) = statements.next()? {
            let tokens = &statements.tokens;
            is_early &= is_straight(statement, tokens)?;
            let mut opcode = None;
            if statement == Statement::Instruction {
                opcode = Some(Parts::of(tokens)?.opcode.start);
                let call = self.call(tokens)?;
                if let (Variant::Entry(form), Some(first)) = (variant, tokens.first()) {
                    let all = needed(tokens, call.as_ref());
                    let late = if is_early { all.only(Quantity::GridSize) } else { all };
                    self.compute(form, first.start, late);
                }
                self.instruction(tokens, call);
            }
            if !labels.is_empty() {
                // A label may have the name of an opcode.
                let names = tokens.iter().filter(|token| Some(token.start) != opcode);
                self.rename(names, &labels, variant);
            }
        }
        Ok(())
    }

    /// Computes `values` before the instruction at `offset`. Computing them at the start of the body took up to
    /// 21 more registers.
    fn compute(&mut self, form: Form, offset: usize, values: Values) {
        if !values.is_empty() {
            self.copy_to(offset);
            self.push("\n");
            self.push(&values::compute(self.names, form, values));
        }
    }

    /// The values that the body reads before its first label, branch or call.
    fn early_reads(&self, open: &Token<'a>) -> Result<Values, PtxError> {
        let mut all = Values::default();
        let mut statements = Statements::of(self.module.text, open);
        while let Some(statement) = statements.next()?
            && is_straight(statement, &statements.tokens)?
        {
            if statement == Statement::Instruction {
                all = all.with(needed(&statements.tokens, None));
            }
        }
        Ok(all)
    }

    /// The call of a function that has a variant, if the instruction is one.
    fn call(&self, tokens: &[Token<'a>]) -> Result<Option<VariantCall<'a>>, PtxError> {
        let parts = Parts::of(tokens)?;
        let call = match parts.opcode.text {
            b"call" => Call::of(tokens, parts.operands),
            _ => None,
        };
        Ok(call.and_then(|call| {
            let id = self.module.resolve(call.target.text)?;
            let values = self.usage.reads[id];
            (!values.is_empty()).then_some(VariantCall { call, id, values })
        }))
    }

    /// Replaces reads, and calls of functions that have a variant.
    fn instruction(&mut self, tokens: &[Token<'a>], call: Option<VariantCall<'a>>) {
        for read in reads(tokens) {
            let (first, last) = (&tokens[read.first], &tokens[read.last]);
            let register = |axis| self.names.register(read.quantity, axis);
            let replacement = match read.axis {
                Some(axis @ 0..3) => register(axis),
                Some(_) => "0".to_owned(),
                None => format!("{{{}, {}, {}, 0}}", register(0), register(1), register(2)),
            };
            self.replace(first.start..last.end(), &replacement);
        }
        let Some(VariantCall { call, id, values }) = call else { return };
        let registers: Vec<String> =
            values.iter().map(|(quantity, axis)| self.names.register(quantity, axis)).collect();
        let registers = registers.join(", ");
        let name = self.names.function(&lossy(self.module.functions[id].name));
        self.replace(call.target.start..call.target.end(), &name);
        match call.arguments_end {
            Some(end) => {
                let comma = if call.has_arguments { ", " } else { "" };
                self.replace(end..end, &format!("{comma}{registers}"));
            }
            None => self.push(&format!(", ({registers})")),
        }
    }

    /// The labels of the body that sections refer to. A variant must rename them.
    fn labels(&self, open: &Token<'a>) -> Result<HashSet<&'a [u8]>, PtxError> {
        let mut labels = HashSet::new();
        if self.module.section_words.is_empty() {
            return Ok(labels);
        }
        let mut statements = Statements::of(self.module.text, open);
        while let Some(statement) = statements.next()? {
            if let (Statement::Label, Some(label)) = (statement, statements.tokens.first())
                && self.module.section_words.contains(label.text)
            {
                labels.insert(label.text);
            }
        }
        Ok(labels)
    }

    fn rename<'t>(
        &mut self,
        tokens: impl Iterator<Item = &'t Token<'a>>,
        labels: &HashSet<&[u8]>,
        variant: Variant,
    ) where
        'a: 't,
    {
        let suffix = match variant {
            Variant::Entry(Form::Shifted) => "shifted",
            Variant::Entry(Form::Folded) => "folded",
            Variant::Function => "called",
        };
        for token in tokens {
            if token.start >= self.copied && labels.contains(token.text) {
                let name = self.names.label(&lossy(token.text), suffix);
                self.replace(token.start..token.end(), &name);
            }
        }
    }

    fn replace(&mut self, range: Range<usize>, text: &str) {
        self.copy_to(range.start);
        self.push(text);
        self.copied = range.end;
    }

    fn copy_to(&mut self, offset: usize) {
        self.out.extend_from_slice(self.module.text.get(self.copied..offset).unwrap_or_default());
        self.copied = offset.max(self.copied);
    }

    fn push(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }
}

/// The values that an instruction reads, itself or through the function that it calls.
fn needed(tokens: &[Token<'_>], call: Option<&VariantCall<'_>>) -> Values {
    let passed = call.map(|call| call.values).unwrap_or_default();
    reads(tokens).fold(passed, |all, read| all.with(read.values()))
}

/// Whether execution always continues with the next statement, which is only reached from here.
fn is_straight(statement: Statement, tokens: &[Token<'_>]) -> Result<bool, PtxError> {
    Ok(match statement {
        Statement::Label => false,
        Statement::Instruction => {
            let opcode = Parts::of(tokens)?.opcode.text;
            ![&b"bra"[..], b"brx", b"call", b"ret", b"exit"].contains(&opcode)
        }
        Statement::Other | Statement::Directive => true,
    })
}

/// Roughly the bytes that a form adds to its original.
const MORE_BYTES: usize = 2048;
