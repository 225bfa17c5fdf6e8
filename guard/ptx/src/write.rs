//! Writes the forms of entries, and functions with added parameters, after their originals.

use core::ops::Range;
use std::collections::HashSet;

use crate::body::{Body, Call};
use crate::error::PtxError;
use crate::lexer::Token;
use crate::module::{Item, Module};
use crate::names::Names;
use crate::report::{ALIGNMENT, Form};
use crate::special::{Values, reads};
use crate::statement::{Instruction, Statement, StatementKind, Statements};
use crate::usage::Usage;
use crate::values;

/// Writes the text, with forms of the entries and variants of the functions that `has_forms` names.
pub(crate) fn write(
    module: &Module<'_>,
    usage: &Usage<'_>,
    names: &Names,
    has_forms: &[bool],
) -> Result<Vec<u8>, PtxError> {
    let items = || module.items.iter().filter(|item| has_variant(module, item, has_forms));
    let added: usize = items().map(|item| 2 * (item.end - item.start + MORE_BYTES)).sum();
    let out = Vec::with_capacity(module.text.len() + added);
    let mut writer = Writer { module, usage, names, out, copied: 0 };
    for item in items() {
        writer.copy_to(item.end);
        let entry = [Some(Form::Shifted), Some(Form::Folded)];
        for form in if item.is_entry { &entry[..] } else { &[None] } {
            writer.variant(item, *form)?;
        }
        writer.copied = item.end;
    }
    writer.copy_to(module.text.len());
    Ok(writer.out)
}

/// Whether a variant of `item` follows it. A declaration of a function has no variant if it follows the
/// definition, for example for an alias.
fn has_variant(module: &Module<'_>, item: &Item<'_>, has_forms: &[bool]) -> bool {
    let id = module.aliased(item.function);
    if item.header.open.is_some() || !has_forms[id] {
        return has_forms[id];
    }
    let definition = module.definition(id);
    !item.is_entry && definition.is_some_and(|(defined, _)| defined.keyword > item.keyword)
}

struct Writer<'m, 'a> {
    module: &'m Module<'a>,
    usage: &'m Usage<'a>,
    names: &'m Names,
    out: Vec<u8>,
    /// The text is copied up to this offset.
    copied: usize,
}

impl<'a> Writer<'_, 'a> {
    /// Writes the declaration or definition `item` once more: as a form of an entry, or as a function that takes block
    /// indices and grid sizes as parameters.
    fn variant(&mut self, item: &Item<'a>, form: Option<Form>) -> Result<(), PtxError> {
        let id = self.module.aliased(item.function);
        let values = self.usage.reads[id];
        let added = match form {
            Some(form) => {
                let bytes = form.parameter_bytes();
                format!("\n\t.param .align {ALIGNMENT} .b8 $_grid[{bytes}]\n")
            }
            None => {
                let one = |value: usize| format!("\n\t.param .b32 $_{}", values::NAMES[value]);
                values.iter().map(one).collect::<Vec<_>>().join(",") + "\n"
            }
        };
        self.push("\n\n");
        // Functions are only called from this text.
        self.copied = if item.is_entry { item.start } else { item.keyword };
        let name = &item.header.name;
        let own = self.module.functions[id].name;
        let suffix = form.map_or(CALLED, Form::name);
        self.replace(name.start..name.end(), &self.names.variant(own, suffix));
        match &item.header.parameters.list {
            Some(list) => {
                self.copy_to(list.end);
                self.push(if item.header.parameters.count > 0 { "," } else { "" });
                self.template(&added);
            }
            None => self.template(&format!("({added})")),
        }
        self.copy_to(item.header.end);
        if let (Some(open), Some((_, body))) = (&item.header.open, self.module.definition(id)) {
            self.body(open, body, values, form)?;
        }
        self.copy_to(item.end);
        Ok(())
    }

    /// Writes a body, whose opening brace was copied.
    fn body(
        &mut self,
        open: &Token<'a>,
        body: &Body<'a>,
        all: Values,
        form: Option<Form>,
    ) -> Result<(), PtxError> {
        // A variant must rename the labels that sections refer to.
        let sections = &self.module.section_words;
        let labels: HashSet<&[u8]> =
            body.labels.iter().copied().filter(|label| sections.contains(label)).collect();
        self.push("\n");
        self.template(&match form {
            // ptxas keeps values that are computed here in uniform registers.
            Some(form) => {
                let early = body
                    .early
                    .map(|(reads, _)| reads.only(Values::BLOCK_INDEX))
                    .unwrap_or_default();
                values::declare(all) + &values::compute(form, early)
            }
            None => values::load(all),
        });
        let mut statements = Statements::new(self.module.text, open);
        while let Some(Statement { tokens, kind }) = statements.next_statement()? {
            let mut opcode = None;
            if let StatementKind::Instruction(instruction) = kind {
                opcode = Some(instruction.opcode.start);
                self.instruction(&instruction, tokens, body, form);
            }
            for token in tokens.iter().filter(|token| labels.contains(token.text)) {
                // A label may have the name of an opcode.
                if token.start >= self.copied && Some(token.start) != opcode {
                    let name = self.names.variant(token.text, form.map_or(CALLED, Form::name));
                    self.replace(token.start..token.end(), &name);
                }
            }
        }
        Ok(())
    }

    /// Replaces reads, and calls of functions that have a variant. A form computes the values beforehand.
    fn instruction(
        &mut self,
        instruction: &Instruction<'_, 'a>,
        tokens: &[Token<'a>],
        body: &Body<'a>,
        form: Option<Form>,
    ) {
        let (names, start) = (self.names, tokens.first().map_or(0, |token| token.start));
        let register = |value: usize| names.fill(&format!("%$_{}", values::NAMES[value]));
        let (mut needed, mut replaced) = (Values::default(), Vec::new());
        for read in reads(tokens) {
            needed = needed.with(read.values());
            let axis = |axis| register(read.register + axis);
            let replacement = match read.axis {
                Some(one @ 0..3) => axis(one),
                Some(_) => "0".to_owned(),
                None => format!("{{{}, {}, {}, 0}}", axis(0), axis(1), axis(2)),
            };
            replaced.push((tokens[read.first].start..tokens[read.last].end(), replacement));
        }
        if let Some((call, id, values)) = self.call(instruction, tokens) {
            needed = needed.with(values);
            let name = names.variant(self.module.functions[id].name, CALLED);
            replaced.push((call.target.start..call.target.end(), name));
            let registers = values.iter().map(register).collect::<Vec<_>>().join(", ");
            replaced.push(match call.arguments_end {
                Some(end) if call.has_arguments => (end..end, format!(", {registers}")),
                Some(end) => (end..end, registers),
                None => (call.target.end()..call.target.end(), format!(", ({registers})")),
            });
        }
        // Computing all values at the start of the body took up to 21 more registers.
        if body.early.is_some_and(|(_, end)| start < end) {
            needed = needed.only(Values::GRID_SIZE);
        }
        if let Some(form) = form.filter(|_| !needed.is_empty()) {
            self.copy_to(start);
            self.push("\n");
            self.template(&values::compute(form, needed));
        }
        for (range, replacement) in replaced {
            self.replace(range, &replacement);
        }
    }

    /// The call of a function that has a variant, its number and values, if the instruction is one.
    fn call(
        &self,
        instruction: &Instruction<'_, 'a>,
        tokens: &[Token<'a>],
    ) -> Option<(Call<'a>, usize, Values)> {
        let is_call = instruction.opcode.text == b"call";
        let call = is_call.then(|| Call::of(tokens, instruction.operands)).flatten()?;
        let id = self.module.resolve(call.target.text)?;
        let values = self.usage.reads[id];
        (!values.is_empty()).then_some((call, id, values))
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

    /// Writes a template with the names of this text.
    fn template(&mut self, template: &str) {
        self.push(&self.names.fill(template));
    }

    fn push(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }
}

/// The suffix in the name of a function with added parameters.
const CALLED: &str = "called";
/// Roughly the bytes that a form adds to its original.
const MORE_BYTES: usize = 2048;
