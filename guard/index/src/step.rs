//! What each instruction computes.

use super::arithmetic::{Mixing, mixing};
use super::condition::Condition;
use super::opcodes::Effect;
use super::operand::{Operand, Type};
use super::poly::Poly;
use super::sizes::{Reason, Size};
use super::trace::{ALL_BITS, Input, Source, Taken, Trace, targets};
use super::values::{Kind, LANE, Op, Origin};

impl<'a> Trace<'_, 'a> {
    /// Follows the instruction at `self.at`.
    pub(super) fn step(&mut self) {
        let instruction = self.code.instructions[self.at].clone();
        let opcode = self.code.tokens[instruction.tokens.start].text;
        let modifiers: Vec<&'a [u8]> = self.code.tokens
            [instruction.tokens.start + 1..instruction.operands]
            .iter()
            .map(|token| token.text)
            .collect();
        let operands = self.operands();
        let (effect, kind, of_result) = self.effect(&instruction);
        self.use_addresses(opcode, &modifiers, &operands);
        if effect == Effect::Call {
            self.called(&operands);
        }
        let targets = targets(effect, &operands).to_vec();
        let sources = operands.get(usize::from(!targets.is_empty())..).unwrap_or_default();
        let is_done = matches!(effect, Effect::Function | Effect::Arithmetic | Effect::Load)
            && kind.is_some_and(|kind| self.follow(opcode, &modifiers, kind, &targets, sources));
        if !is_done && (effect != Effect::Control) {
            self.unfollowed(effect, &modifiers, (kind, of_result), &targets, &operands);
        }
    }

    /// Whether the result of an instruction is known exactly. Its targets are written then.
    fn follow(
        &mut self,
        opcode: &'a [u8],
        modifiers: &[&'a [u8]],
        kind: Type,
        targets: &[u32],
        sources: &[Operand<'a>],
    ) -> bool {
        match (targets, opcode) {
            ([target], _) if is_condition(opcode, modifiers) => {
                self.condition(opcode, *target, sources)
            }
            ([target], b"setp") => self.compare(modifiers, kind, *target, sources),
            ([target, ..], b"shfl") if kind.is_integer => {
                self.exchange(*target, &targets[1..], sources)
            }
            ([low, high], b"mov") if kind.is_integer => self.unpack([*low, *high], kind, sources),
            ([target], _) if kind.is_integer => {
                let node = match self.result(opcode, modifiers, kind, sources) {
                    Some(Computed::Node(node)) => node,
                    Some(Computed::Value(Some(value), inputs)) => self.push(value, inputs),
                    _ => return false,
                };
                self.write(*target, node);
                true
            }
            _ => false,
        }
    }

    pub(super) fn source(&mut self, operand: &Operand<'_>) -> Option<Source> {
        match operand {
            Operand::Register(id) => Some(self.read(*id)),
            Operand::Constant(value) => Some(self.push(Poly::constant(*value), Vec::new())),
            Operand::Special(name, selector) => {
                let value = self.special(name, selector);
                Some(self.push(value, Vec::new()))
            }
            _ => None,
        }
    }

    fn special(&mut self, name: &[u8], selector: &[u8]) -> Poly {
        let axis = AXES.iter().position(|names| names.contains(&selector));
        let kind = match (name, axis) {
            (b"%tid", Some(axis)) => Kind::ThreadIndex(axis),
            (b"%ctaid", Some(axis)) => Kind::BlockIndex(axis),
            (b"%ntid", Some(axis)) => Kind::Size(Size::Block(axis), 4),
            (b"%nctaid", Some(axis)) => Kind::Size(Size::Grid(axis), 4),
            (b"%laneid", _) => Kind::UpTo(LANE, Poly::constant(31)),
            (b"WARP_SZ", _) => return Poly::constant(32),
            _ => Kind::Opaque(self.values.atoms.len(), Reason::Instruction),
        };
        self.values.unfollowed = Origin::Launch;
        match kind {
            Kind::Opaque(_, why) => self.values.opaque(why, 0, i128::from(u32::MAX)),
            kind => self.values.poly(kind),
        }
    }

    /// An input that the instruction takes as a number of this type.
    pub(super) fn taken(&mut self, node: Source, kind: Type, is_doubt: bool) -> Input {
        let value = &self.nodes[node].value;
        let is_negative = !kind.is_signed && self.values.may_be_negative(value);
        // Of 64 bits only the sign matters, since no size is that large. A negative constant is a large one.
        let is_wide = kind.bits > 32 && (!is_negative || value.as_constant().is_some());
        if is_wide || self.nodes[node].is_predicate {
            let input = Input { lower: None, ..Input::of(node) };
            return if is_doubt { input.doubted() } else { input };
        }
        if !is_doubt
            && kind.is_signed
            && let Some(atom) = value.as_atom()
            && let Kind::Size(Size::Parameter { .. }, 4) = self.values.get(atom).kind
        {
            self.values.take_as_signed(atom);
        }
        let own = Taken { bits: kind.bits, is_signed: kind.is_signed };
        let (low, high) = self.values.range(value);
        // Bits that no arithmetic made cannot have wrapped. Whether fewer are cut off is known when all is followed.
        let is_plain = kind.bits == 32 && self.values.is_plain(value, kind.bits);
        let fits = high <= own.most() && low >= own.least();
        let taken_as = (is_negative || !fits && !is_plain).then_some(own);
        let is_doubt = is_doubt || kind.bits < 32 || mixing(value) > Mixing::None;
        let input = Input { node, taken_as, ..Input::default() };
        if is_doubt { input.doubted() } else { input }
    }

    pub(super) fn inputs(&mut self, nodes: &[Source], kind: Type) -> Vec<Input> {
        nodes.iter().map(|node| self.taken(*node, kind, false)).collect()
    }

    /// The result of an instruction with one integer target, if it is known.
    fn result(
        &mut self,
        opcode: &[u8],
        modifiers: &[&[u8]],
        kind: Type,
        operands: &[Operand<'a>],
    ) -> Option<Computed> {
        let has = |name: &[u8]| modifiers.contains(&name);
        if opcode == b"ld" && (has(b".param") || has(b".param::entry")) {
            let Some(Operand::Address(names, offset)) = operands.first() else { return None };
            let bytes = u64::from(kind.bits / 8);
            return Some(Computed::Value(self.parameter(names, *offset, bytes), Vec::new()));
        }
        if let (b"mov", [Operand::Several(parts)]) = (opcode, operands) {
            return self.pack(parts);
        }
        if let (b"selp", [one, two, Operand::Register(predicate)]) = (opcode, operands) {
            let nodes = [self.source(one)?, self.source(two)?];
            return Some(Computed::Node(self.select(nodes, *predicate)));
        }
        let mut nodes = Vec::with_capacity(operands.len());
        for operand in operands {
            match self.source(operand) {
                Some(node) => nodes.push(node),
                None => return None,
            }
        }
        if nodes.iter().any(|node| self.nodes[*node].is_predicate) {
            return None;
        }
        let values: Vec<Poly> = nodes.iter().map(|node| self.nodes[*node].value.clone()).collect();
        let inputs: Vec<Input> = nodes.iter().map(|node| Input::of(*node)).collect();
        let numbers = |trace: &mut Self| trace.quotient_of(&nodes, kind);
        let is_hash = |trace: &Self, value: &Poly| trace.is_hash(value, kind);
        let one = Poly::constant(1);
        let (value, inputs) = match (opcode, &values[..]) {
            (b"mov" | b"cvta", [value]) => (Some(value.clone()), inputs),
            (b"cvt", [value]) => return self.convert(modifiers, nodes[0], value),
            (b"add", [a, b]) => (a.plus(b, 1), inputs),
            (b"sub", [a, b]) => (a.plus(b, -1), inputs),
            (b"neg", [a]) => (a.scaled(-1), inputs),
            (b"not", [a]) => (a.scaled(-1).and_then(|a| a.plus(&one, -1)), inputs),
            (b"abs", [a]) if self.values.range(a).0 >= 0 => {
                (Some(a.clone()), vec![self.taken(nodes[0], kind, true)])
            }
            (b"mul" | b"mad", [a, b, ..]) => {
                if has(b".hi") && values.iter().any(|value| is_hash(self, value)) {
                    return self.hashed(kind, None, inputs);
                } else if has(b".hi") && !kind.is_signed && !self.are_nonnegative(&values[..2]) {
                    (None, inputs)
                } else if has(b".hi") {
                    let whole = Self::product(a, b, kind, true);
                    let power = Poly::constant(1 << kind.bits.min(64));
                    let value = whole.map(|whole| self.values.quotient(&whole, &power));
                    let value =
                        values.get(2).map_or(value.clone(), |c| value.and_then(|it| it.plus(c, 1)));
                    // Of a product with another number than a reciprocal, nothing may be kept.
                    let is_doubt = values[1].as_constant().is_none();
                    let inputs = numbers(self).into_iter();
                    let doubted = |input: Input| if is_doubt { input.doubted() } else { input };
                    (value, inputs.map(doubted).collect())
                } else {
                    let mut inputs = inputs;
                    if has(b".wide") {
                        for place in 0..2 {
                            let input = self.taken(nodes[place], kind, false);
                            inputs[place] = Input { lower: inputs[place].lower, ..input };
                        }
                    }
                    let product = Self::product(a, b, kind, false);
                    let value = match values.get(2) {
                        Some(c) => product.and_then(|product| product.plus(c, 1)),
                        None => product,
                    };
                    (value, inputs)
                }
            }
            (b"shl", [a, b]) => match (b.as_constant(), a.as_constant(), self.values.range(b)) {
                (Some(by), ..) if (0..kind.bits.into()).contains(&by) => {
                    let lower = Some([ALL_BITS, u32::try_from(by).unwrap_or(0)]);
                    (a.scaled(1 << by), vec![Input { lower, ..inputs[0] }])
                }
                // One bit, or a mask.
                (None, Some(a @ 0..=0xffff_ffff), (0.., by @ ..32))
                    if a << by <= kind.range().1 =>
                {
                    self.values.unfollowed = self.nodes[nodes[1]].origin;
                    (Some(self.values.up_to(Poly::constant(a << by))), numbers(self))
                }
                _ => (None, inputs),
            },
            (b"shr", [a, b]) => match b.as_constant() {
                // The sign bit, which is 0 if nothing wrapped.
                Some(31) if kind.bits == 32 && self.values.range(a).0 >= 0 => {
                    (Some(Poly::constant(0)), inputs)
                }
                Some(by @ 0..64) if is_hash(self, a) => {
                    return self.hashed(kind, Some(kind.range().1 >> by), inputs);
                }
                Some(by @ 0..64) => {
                    let value = self.values.quotient(a, &Poly::constant(1 << by));
                    (Some(value), numbers(self))
                }
                None if self.values.range(a).0 >= 0 => match self.values.by_reciprocal(a, b) {
                    Some((number, divisor)) => {
                        (Some(self.values.quotient(&number, &divisor)), numbers(self))
                    }
                    None => {
                        self.values.unfollowed =
                            self.nodes[nodes[0]].origin.max(self.nodes[nodes[1]].origin);
                        (Some(self.values.up_to(a.clone())), self.limited(&nodes, kind))
                    }
                },
                _ => (None, inputs),
            },
            (b"div" | b"rem" | b"bfe", [a, ..]) if is_hash(self, a) => {
                let most = values[1].as_constant().filter(|_| opcode == b"rem");
                return self.hashed(kind, most.map(|most| most - 1), inputs);
            }
            (b"div", [a, b]) if b.as_constant() != Some(0) => {
                (Some(self.values.quotient(a, b)), self.divided(&nodes, kind))
            }
            (b"rem", [a, b]) if b.as_constant() != Some(0) => {
                let inputs = if kind.is_signed {
                    self.divided(&nodes, kind)
                } else {
                    self.limited(&nodes, kind)
                };
                (Some(self.values.remainder(a, b)), inputs)
            }
            // Of an unsigned type, a negative number is the larger one.
            (b"min" | b"max", _) if !kind.is_signed && !self.are_nonnegative(&values) => {
                (None, inputs)
            }
            (b"min", [a, b]) => {
                (Some(self.values.binary(Op::Least, a, b)), self.limited(&nodes, kind))
            }
            (b"max", [a, b]) => {
                (Some(self.values.binary(Op::Greatest, a, b)), self.limited(&nodes, kind))
            }
            (b"and", [a, b]) => {
                // What a mask cuts off is meant to be cut off, and another number may keep nothing.
                let mask = a.as_constant().or(b.as_constant()).unwrap_or(0);
                let most = if mask > 0 { i128::BITS - mask.leading_zeros() } else { ALL_BITS };
                let inputs = inputs.into_iter().map(|input| {
                    let input = Input { lower: Some([most, 0]), ..input };
                    if mask < 0 { input } else { input.doubted() }
                });
                (self.masked(a, b), inputs.collect())
            }
            (b"or", [a, b]) => {
                let value = self.either(a, b);
                let is_sum = a.plus(b, 1).as_ref() == Some(&value);
                (Some(value), if is_sum { inputs } else { self.limited(&nodes, kind) })
            }
            (b"xor", [a, b]) if self.values.bits(a) & self.values.bits(b) == 0 => {
                (a.plus(b, 1), inputs)
            }
            (b"xor", [a, b]) if self.values.range(a).0 >= 0 && self.values.range(b).0 >= 0 => {
                let kind = Type { is_signed: true, ..kind };
                let inputs = nodes.iter().map(|node| self.taken(*node, kind, true)).collect();
                (Some(self.values.binary(Op::Xor, a, b)), inputs)
            }
            // A field that holds the whole value.
            (b"bfi", [a, b, from, bits]) => {
                let (from, bits) = (from.as_constant()?, bits.as_constant()?);
                let is_whole =
                    (0..32).contains(&from) && (0..32).contains(&bits) && from + bits < 32;
                let (a_range, b_range) = (self.values.range(a), self.values.range(b));
                let is_small = is_whole && a_range.0 >= 0 && a_range.1 < 1 << bits;
                let is_free = self.values.bits(b) & ((1 << bits) - 1) << from == 0;
                if !(is_small && is_free && b_range.0 >= 0) {
                    return None;
                }
                (a.scaled(1 << from)?.plus(b, 1), inputs)
            }
            (b"bfe", [a, from, bits]) if !kind.is_signed => {
                let (from, bits) = (from.as_constant()?, bits.as_constant()?);
                ((0..64).contains(&from) && (0..64).contains(&bits)).then_some(())?;
                let rest = self.values.quotient(a, &Poly::constant(1 << from));
                let inputs = nodes.iter().map(|node| self.taken(*node, kind, true)).collect();
                let fits =
                    self.values.range(&rest).0 >= 0 && self.values.range(&rest).1 < 1 << bits;
                self.values.unfollowed = self.nodes[nodes[0]].origin;
                let value =
                    if fits { rest } else { self.values.up_to(Poly::constant((1 << bits) - 1)) };
                (Some(value), inputs)
            }
            _ => (None, inputs),
        };
        Some(Computed::Value(value, inputs))
    }

    /// A dividend, and a divisor: if that is too large, the quotient is zero either way.
    fn divided(&mut self, nodes: &[Source], kind: Type) -> Vec<Input> {
        let mut inputs = self.quotient_of(nodes, kind);
        inputs.iter_mut().skip(1).for_each(|input| *input = input.doubted());
        inputs
    }

    /// Numbers of which the quotient is known unless one is negative.
    fn quotient_of(&mut self, nodes: &[Source], kind: Type) -> Vec<Input> {
        let mut inputs = self.inputs(nodes, kind);
        if kind.is_signed {
            inputs.extend(self.limited(nodes, Type { is_signed: false, ..kind }));
        }
        inputs
    }

    /// Numbers of which the result may keep nothing that wraps.
    fn limited(&mut self, nodes: &[Source], kind: Type) -> Vec<Input> {
        self.inputs(nodes, kind).into_iter().map(Input::doubted).collect()
    }

    /// A value that was meant to wrap and is reduced by the instruction to at most `most`.
    fn hashed(&mut self, kind: Type, most: Option<i128>, inputs: Vec<Input>) -> Option<Computed> {
        self.values.unfollowed = inputs.iter().map(|input| self.nodes[input.node].origin).max()?;
        let (low, high) = kind.range();
        let value = match most {
            Some(most @ 0..) if !kind.is_signed => self.values.up_to(Poly::constant(most)),
            _ => self.values.opaque(Reason::Instruction, low, high),
        };
        let inputs = inputs.into_iter().map(|input| Input { lower: None, ..input.doubted() });
        Some(Computed::Value(Some(value), inputs.collect()))
    }

    /// Whether an instruction of this type takes a number that was meant to wrap.
    fn is_hash(&self, value: &Poly, kind: Type) -> bool {
        let ((low, high), (least, most)) =
            (self.values.range(value), Type { is_signed: false, ..kind }.range());
        (low < least || high > most)
            && mixing(value) >= if kind.bits > 32 { Mixing::Wide } else { Mixing::Hash }
    }

    fn convert(&mut self, modifiers: &[&[u8]], node: Source, value: &Poly) -> Option<Computed> {
        let mut types = modifiers.iter().rev().map_while(|name| Type::of(name));
        let (from, to) = (types.next()?, types.next()?);
        if !from.is_integer || !to.is_integer || modifiers.contains(&&b".sat"[..]) {
            return None;
        }
        if to.bits > from.bits {
            let input = Input { lower: Some([ALL_BITS, 0]), ..self.taken(node, from, false) };
            return Some(Computed::Value(Some(value.clone()), vec![input]));
        }
        let (low, high) = self.values.range(value);
        let (least, most) = to.range();
        if to.bits < from.bits && to.bits < 32 && (low < least || high > most) {
            // The upper bits may be cut off on purpose.
            self.values.unfollowed = self.nodes[node].origin;
            let value = match to.is_signed {
                true => self.values.opaque(Reason::Instruction, least, most),
                false => self.values.up_to(Poly::constant(most)),
            };
            let input = self.taken(node, to, true);
            return Some(Computed::Value(Some(value), vec![input]));
        }
        Some(Computed::Value(Some(value.clone()), vec![Input::of(node)]))
    }

    fn select(&mut self, nodes: [Source; 2], predicate: u32) -> usize {
        if self.nodes[nodes[0]].value == self.nodes[nodes[1]].value {
            return nodes[0];
        }
        let context = self.context;
        let condition = self.read(predicate);
        let contexts = [true, false].map(|truth| self.assume(context, condition, truth));
        let both = [(nodes[0], contexts[0]), (nodes[1], contexts[1])];
        let node = self.join(predicate, &both, None);
        self.depend_on(node, predicate);
        node
    }

    /// `shfl`: the value of another thread.
    fn exchange(&mut self, target: u32, others: &[u32], sources: &[Operand<'a>]) -> bool {
        let Some(node) = sources.first().and_then(|source| self.source(source)) else {
            return false;
        };
        let is_inside = self.predicate(Condition::Unknown(false), vec![Input::of(node)]);
        others.iter().for_each(|other| self.write(*other, is_inside));
        let node = self.join(target, &[(node, 0)], None);
        self.write(target, node);
        true
    }

    /// `mov.b64 d, {low, high}`
    fn pack(&mut self, parts: &[u32]) -> Option<Computed> {
        let [low, high] = parts else { return None };
        let (low, high) = (self.read(*low), self.read(*high));
        let is_zero = self.nodes[high].value.as_constant() == Some(0);
        let are_values = [low, high].iter().all(|node| !self.nodes[*node].is_predicate);
        (is_zero && are_values).then_some(())?;
        let inputs = vec![self.taken(low, WORD, false), Input::of(high)];
        Some(Computed::Value(Some(self.nodes[low].value.clone()), inputs))
    }

    /// `mov.b64 {low, high}, a`
    fn unpack(&mut self, [low, high]: [u32; 2], kind: Type, sources: &[Operand<'a>]) -> bool {
        let (64, [source]) = (kind.bits, sources) else { return false };
        let node = self.source(source).filter(|node| !self.nodes[*node].is_predicate);
        let Some(node) = node else { return false };
        let value = self.nodes[node].value.clone();
        let upper = self.values.quotient(&value, &Poly::constant(1 << 32));
        let input = Input::of(node);
        for (target, value, input) in
            [(low, value, input), (high, upper, Input { lower: None, ..input })]
        {
            let node = self.push(value, vec![input]);
            self.write(target, node);
        }
        true
    }
}

enum Computed {
    Node(usize),
    Value(Option<Poly>, Vec<Input>),
}

fn is_condition(opcode: &[u8], modifiers: &[&[u8]]) -> bool {
    modifiers.last() == Some(&&b".pred"[..]) && opcode != b"setp"
}

const AXES: [[&[u8]; 2]; 3] = [[b".x", b".r"], [b".y", b".g"], [b".z", b".b"]];
pub(super) const WORD: Type = Type { bits: 32, is_signed: false, is_integer: true };
