//! Extracts one entry of a text, for a second module beside the module of the whole text.

use core::ops::Range;
use std::collections::HashMap;

use crate::error::PtxError;
use crate::header::{Problem, number};
use crate::lexer::{Token, lossy};
use crate::module::{Item, Module};
use crate::names::Names;
use crate::refusal::{Reason, Refusal};
use crate::statement::{Instruction, Statement, StatementKind, Statements};

/// A variable that a text declares outside its functions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// One entry of a text, with everything that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extracted {
    /// The text.
    pub text: Vec<u8>,
    /// The constants that the text declares and uses. Before each launch, the caller must copy their values from the
    /// loaded module.
    pub constants: Vec<Variable>,
}

/// Extracts the entry `name` of `ptx`, for a module beside a loaded module of the same text.
///
/// The entry uses the variables of the loaded module: `address_of` returns the address of a global variable, which
/// replaces the name in the text. Device code cannot write constants, so the text declares them again.
///
/// # Errors
///
/// [`PtxError`] if the text is not PTX. The inner error: the entry uses a variable that two modules cannot share, or
/// `address_of` returns `None` for it. The result has no entry if the text has no entry of this name.
pub fn extract(
    ptx: &[u8],
    name: &str,
    mut address_of: impl FnMut(&Variable) -> Option<u64>,
) -> Result<Result<Extracted, Refusal>, PtxError> {
    let end = ptx.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let text = &ptx[..end];
    let module = Module::read(text)?;
    let mut declared = HashMap::new();
    for (place, variable) in module.variables.iter().enumerate() {
        declared.extend(variable.names.iter().map(|name| (name.text, place)));
    }
    let mut extractor = Extractor {
        module: &module,
        names: Names::new(text),
        declared,
        address_of: &mut address_of,
        uses: vec![None; module.variables.len()],
        replaced: Vec::new(),
        refusal: None,
    };
    // Debug sections may refer to labels of all entries.
    let keeps_all = !module.section_words.is_empty();
    for item in &module.items {
        if !item.is_entry || keeps_all || item.header.name.text == name.as_bytes() {
            extractor.function(item)?;
        } else {
            // Keeps the numbers of lines, for refusals.
            let removed = text.get(item.start..item.end).unwrap_or_default();
            let lines = removed.iter().filter(|byte| **byte == b'\n').count();
            extractor.replaced.push((item.start..item.end, "\n".repeat(lines)));
        }
    }
    Ok(extractor.finish())
}

/// How the new text refers to a variable.
#[derive(Clone, Debug)]
enum Use {
    Constant,
    Address(u64),
}

struct Extractor<'m, 'a> {
    module: &'m Module<'a>,
    names: Names,
    /// The place of each variable among the module's.
    declared: HashMap<&'a [u8], usize>,
    address_of: &'m mut dyn FnMut(&Variable) -> Option<u64>,
    uses: Vec<Option<Use>>,
    /// What replaces parts of the text, in order.
    replaced: Vec<(Range<usize>, String)>,
    refusal: Option<Refusal>,
}

impl<'a> Extractor<'_, 'a> {
    /// Replaces the global variables that a function uses by their addresses.
    fn function(&mut self, item: &Item<'a>) -> Result<(), PtxError> {
        let Some(open) = &item.header.open else { return Ok(()) };
        let function = item.header.name.text;
        let mut statements = Statements::new(self.module.text, open);
        let mut registers = 0;
        while let Some(Statement { tokens, kind }) = statements.next_statement()? {
            let instruction = match &kind {
                StatementKind::Instruction(instruction) => Some(instruction),
                StatementKind::Directive => None,
                StatementKind::Label | StatementKind::Other => continue,
            };
            let mut loaded = Vec::new();
            for (at, token) in tokens.iter().enumerate() {
                let place = token.word().and_then(|name| self.declared.get(name).copied());
                match place.map(|place| self.use_of(place, token, function)) {
                    Some(Some(Use::Address(address))) => {
                        match replacement(instruction, tokens, at, address) {
                            Some((end, address)) => {
                                let name = self.names.fill(&format!("%$_variable{}", loaded.len()));
                                self.replaced.push((token.start..end, name));
                                loaded.push(address);
                            }
                            None => self.refuse(Reason::UnsharedVariable, token, function),
                        }
                    }
                    Some(Some(Use::Constant) | None) | None => {}
                }
            }
            let start = tokens.first().map_or(0, |token| token.start);
            for (number, address) in loaded.iter().enumerate() {
                let load = format!("mov.b64 %$_variable{number}, {address};\n\t");
                self.replaced.push((start..start, self.names.fill(&load)));
            }
            registers = registers.max(loaded.len());
        }
        if registers > 0 {
            let declaration = format!("\n\t.reg .b64 %$_variable<{registers}>;");
            self.replaced.push((open.end()..open.end(), self.names.fill(&declaration)));
        }
        Ok(())
    }

    /// How the new text refers to a variable that `function` uses in `token`; `None` if the entry is refused.
    fn use_of(&mut self, place: usize, token: &Token<'a>, function: &[u8]) -> Option<Use> {
        if let Some(known) = self.uses.get(place).cloned().flatten() {
            return Some(known);
        }
        let declared = self.module.variables.get(place)?;
        let variable = match declared.bytes.filter(|_| !declared.is_external) {
            Some(bytes) => Variable { name: lossy(token.text), bytes },
            None => {
                self.refuse(Reason::UnsharedVariable, token, function);
                return None;
            }
        };
        let found = match declared.is_constant {
            true => Some(Use::Constant),
            false => (self.address_of)(&variable).map(Use::Address),
        };
        if found.is_none() {
            self.refuse(Reason::MissingVariable, token, function);
        }
        *self.uses.get_mut(place)? = found.clone();
        found
    }

    fn refuse(&mut self, reason: Reason, token: &Token<'a>, function: &[u8]) {
        let refusal = || Problem::new(reason, token).in_function(function);
        self.refusal.get_or_insert_with(refusal);
    }

    fn finish(mut self) -> Result<Extracted, Refusal> {
        let mut constants = Vec::new();
        for (declared, used) in self.module.variables.iter().zip(&self.uses) {
            match (used, declared.bytes, &declared.names[..]) {
                (Some(Use::Address(_)), ..) => {
                    self.replaced.push((declared.range.clone(), String::new()));
                }
                (Some(Use::Constant), Some(bytes), [name]) => {
                    constants.push(Variable { name: lossy(name.text), bytes });
                }
                _ => {}
            }
        }
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        self.replaced.sort_by_key(|(range, _)| range.start);
        let (mut text, mut copied) = (Vec::new(), 0);
        let original = self.module.text;
        for (range, replacement) in self.replaced {
            text.extend_from_slice(original.get(copied..range.start).unwrap_or_default());
            text.extend_from_slice(replacement.as_bytes());
            copied = range.end;
        }
        text.extend_from_slice(original.get(copied..).unwrap_or_default());
        Ok(Extracted { text, constants })
    }
}

/// The end of the operand whose variable is token `at`, and the value of a register that replaces the operand.
/// `None` if the operand is neither an address that the instruction accesses, nor an address that it copies.
fn replacement(
    instruction: Option<&Instruction<'_, '_>>,
    tokens: &[Token<'_>],
    at: usize,
    address: u64,
) -> Option<(usize, u64)> {
    let opcode = instruction?.opcode.text;
    let is = |index: usize, byte| tokens.get(index).is_some_and(|token| token.is(byte));
    let end = tokens.get(at)?.end();
    if at > 0 && is(at - 1, b'[') {
        return Some((end, address));
    }
    if !matches!(opcode, b"mov" | b"cvta") {
        return None;
    }
    if is(at + 1, b',') || is(at + 1, b';') {
        return Some((end, address));
    }
    let offset = tokens.get(at + 2).filter(|_| is(at + 1, b'+') && is(at + 3, b';'))?;
    Some((offset.end(), address.checked_add(number(offset.text)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "\
.version 8.0
.target sm_90
.address_size 64
.const .align 4 .b8 scale[16] = {0, 0, 128, 63};
.global .align 4 .u32 counter;
.visible .global .align 4 .b8 table[32] = {1, 2};
.global .texref image;
.global .u64 other;
.func f()
{
	st.global.u64 [other], 1;
	ret;
}
.visible .entry plain()
{
	ret;
}
.visible .entry uses(.param .u64 out)
{
	.reg .b64 %d<4>;
	ld.const.f32 %f1, [scale+8];
	mov.u64 %d1, table+16;
	@%p1 ld.global.nc.u32 %r1, [table+4];
	mov.u64 %d2, counter; cvta.global.u64 %d3, %d2;
	call f;
	ret;
}
.visible .entry textured()
{
	tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [image, {%f5, %f6}];
	ret;
}
";

    fn address(variable: &Variable) -> Option<u64> {
        match (variable.name.as_str(), variable.bytes) {
            ("counter", 4) => Some(0x7000),
            ("table", 32) => Some(0x8000),
            ("other", 8) => Some(0x9000),
            _ => None,
        }
    }

    #[test]
    fn an_entry_uses_the_variables_of_the_loaded_module() {
        let extracted = extract(PTX.as_bytes(), "uses", address).expect("PTX").expect("it can");
        assert_eq!(extracted.constants, [Variable { name: "scale".into(), bytes: 16 }]);
        assert_eq!(
            String::from_utf8(extracted.text).expect("ASCII"),
            "\
.version 8.0
.target sm_90
.address_size 64
.const .align 4 .b8 scale[16] = {0, 0, 128, 63};


.global .texref image;

.func f()
{
	.reg .b64 %__gridguard_variable<1>;
	mov.b64 %__gridguard_variable0, 36864;
	st.global.u64 [%__gridguard_variable0], 1;
	ret;
}




.visible .entry uses(.param .u64 out)
{
	.reg .b64 %__gridguard_variable<1>;
	.reg .b64 %d<4>;
	ld.const.f32 %f1, [scale+8];
	mov.b64 %__gridguard_variable0, 32784;
	mov.u64 %d1, %__gridguard_variable0;
	mov.b64 %__gridguard_variable0, 32768;
	@%p1 ld.global.nc.u32 %r1, [%__gridguard_variable0+4];
	mov.b64 %__gridguard_variable0, 28672;
	mov.u64 %d2, %__gridguard_variable0; cvta.global.u64 %d3, %d2;
	call f;
	ret;
}





"
        );
    }

    #[test]
    fn a_variable_that_cannot_be_shared_is_refused_where_it_is_used() {
        let refused = |text: &str, name: &str| {
            let refusal = extract(text.as_bytes(), name, address).expect("PTX").expect_err(text);
            (refusal.reason, refusal.subject, refusal.function)
        };
        let expected = |reason, subject: &str, function: &str| {
            (reason, subject.to_owned(), function.to_owned())
        };
        assert_eq!(
            refused(PTX, "textured"),
            expected(Reason::UnsharedVariable, "image", "textured")
        );
        let larger = PTX.replace("table[32]", "table[33]");
        assert_eq!(refused(&larger, "uses"), expected(Reason::MissingVariable, "table", "uses"));
        for (from, to, subject) in [
            (".const .align 4", ".extern .const .align 4", "scale"),
            (".global .u64 other;", ".global .u64 other, another;", "other"),
            ("mov.u64 %d1, table+16;", "add.u64 %d1, table, 16;", "table"),
            ("mov.u64 %d1, table+16;", "mov.u64 %d1, table-16;", "table"),
            ("mov.u64 %d1, table+16;", "mov.b64 {%r1, %r2}, {table, table};", "table"),
            ("mov.u64 %d1, table+16;", ".reg .b64 table;", "table"),
        ] {
            let text = PTX.replace(from, to);
            assert_ne!(text, PTX);
            assert_eq!(
                (refused(&text, "uses").0, &*refused(&text, "uses").1),
                (Reason::UnsharedVariable, subject),
                "{to}"
            );
        }
    }

    #[test]
    fn a_text_cut_anywhere_or_rewritten_before_is_no_problem() {
        for end in 0..=PTX.len() {
            if let Ok(Ok(extracted)) = extract(&PTX.as_bytes()[..end], "uses", address) {
                assert!(Module::read(&extracted.text).is_ok(), "{end}");
            }
        }
        let extracted = |text: &[u8]| extract(text, "uses", address).expect("PTX").expect("it can");
        let once = extracted(PTX.as_bytes());
        // Its variables are addresses by now.
        assert_eq!(extracted(&once.text), once);
    }

    #[test]
    fn debug_sections_keep_the_other_entries() {
        let text = PTX.replace(
            ".visible .entry textured",
            ".section .debug_x { .b64 $L }\n.visible .entry textured",
        );
        let kept = extract(text.replace("[image, ", "[%d1, ").as_bytes(), "uses", address);
        let kept = String::from_utf8(kept.expect("PTX").expect("it can").text).expect("ASCII");
        assert!(kept.contains(".entry plain(") && kept.contains(".entry textured("), "{kept}");
    }
}
