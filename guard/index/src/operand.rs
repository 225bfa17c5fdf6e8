//! Operands and types of instructions.

use gridguard_ptx::syntax::{Token, TokenKind, number};

use super::code::{Code, Instruction};

/// An operand.
#[derive(Clone, Debug)]
pub(super) enum Operand<'a> {
    /// A register or another name, by its number.
    Register(u32),
    Constant(i128),
    /// A special register and its selector.
    Special(&'a [u8], &'a [u8]),
    /// The names in brackets, and a constant offset.
    Address(Vec<u32>, i128),
    /// The registers in braces, or joined by `|`.
    Several(Vec<u32>),
    Other,
}

impl Operand<'_> {
    /// The registers that an instruction writes if this is its first operand.
    pub(super) fn written(&self) -> &[u32] {
        match self {
            Self::Register(id) => core::slice::from_ref(id),
            Self::Several(ids) => ids,
            _ => &[],
        }
    }
}

/// The integer type that a modifier of an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) bits: u32,
    pub(super) is_signed: bool,
    pub(super) is_integer: bool,
}

impl Type {
    pub(super) fn of(modifier: &[u8]) -> Option<Self> {
        let (kind, bits) = modifier.strip_prefix(b".")?.split_first()?;
        if modifier == b".pred" {
            return Some(Self { bits: 1, is_signed: false, is_integer: false });
        }
        let bits = core::str::from_utf8(bits).ok()?;
        let (is_integer, is_signed) = match kind {
            b'u' | b'b' => (true, false),
            b's' => (true, true),
            b'f' => (false, true),
            _ => return None,
        };
        let bits: u32 = bits.split('x').next()?.parse().ok()?;
        matches!(bits, 8 | 16 | 32 | 64 | 128).then_some(Self { bits, is_signed, is_integer })
    }

    /// The range of its values.
    pub(super) fn range(self) -> (i128, i128) {
        let bits = self.bits.min(64);
        match self.is_signed {
            true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            false => (0, (1 << bits) - 1),
        }
    }
}

/// The operands of `instruction`.
pub(super) fn operands<'a>(code: &Code<'a>, instruction: &Instruction) -> Vec<Operand<'a>> {
    let range = instruction.operands..instruction.tokens.end.saturating_sub(1);
    let mut operands = Vec::new();
    let (mut begin, mut depth) = (range.start, 0_usize);
    for at in range.clone() {
        match code.tokens[at].kind {
            TokenKind::Punctuation(b'{' | b'[' | b'(') => depth += 1,
            TokenKind::Punctuation(b'}' | b']' | b')') => depth = depth.saturating_sub(1),
            TokenKind::Punctuation(b',') if depth == 0 => {
                operands.push(operand(code, begin, at));
                begin = at + 1;
            }
            _ => {}
        }
    }
    if begin < range.end {
        operands.push(operand(code, begin, range.end));
    }
    operands
}

fn operand<'a>(code: &Code<'a>, begin: usize, end: usize) -> Operand<'a> {
    let tokens = &code.tokens[begin..end];
    let names = || {
        let words = (begin..end).filter(|at| code.tokens[*at].kind == TokenKind::Word);
        words.map(|at| code.ids[at]).collect::<Vec<_>>()
    };
    match tokens {
        [one] if matches!(one.text, b"%laneid" | b"WARP_SZ") => Operand::Special(one.text, b""),
        [one] if one.kind == TokenKind::Word => Operand::Register(code.ids[begin]),
        [one] if one.kind == TokenKind::Number => constant(one.text, 1),
        [sign, one] if sign.is(b'-') && one.kind == TokenKind::Number => constant(one.text, -1),
        [one, selector] if one.kind == TokenKind::Word && selector.kind == TokenKind::Dotted => {
            Operand::Special(one.text, selector.text)
        }
        [open, .., close] if open.is(b'[') && close.is(b']') => {
            Operand::Address(names(), offset(tokens))
        }
        [open, ..] if open.is(b'{') || open.is(b'(') => Operand::Several(names()),
        [_, bar, _] if bar.is(b'|') => Operand::Several(names()),
        _ => Operand::Other,
    }
}

/// The constant after `+` in an address.
fn offset(tokens: &[Token<'_>]) -> i128 {
    let plus = tokens.iter().position(|token| token.is(b'+'));
    let rest = plus.and_then(|at| tokens.get(at + 1..)).unwrap_or_default();
    let found = match rest {
        [sign, one, ..] if sign.is(b'-') => constant(one.text, -1),
        [one, ..] => constant(one.text, 1),
        _ => Operand::Other,
    };
    if let Operand::Constant(value) = found { value } else { 0 }
}

fn constant<'a>(text: &[u8], sign: i128) -> Operand<'a> {
    match number(text) {
        Some(value) => Operand::Constant(sign * i128::from(value)),
        None => Operand::Other,
    }
}
