//! What each instruction computes.

use super::arithmetic::is_mixed;
use super::operand::{Operand, Type};
use super::poly::Poly;
use super::sizes::{Reason, Size};
use super::trace::{Input, Signed, Source, Trace, Use, index, writes};
use super::values::Kind;

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
        let kind = modifiers.last().and_then(|modifier| Type::of(modifier));
        self.use_addresses(opcode, &modifiers, &operands);
        if opcode == b"call" {
            self.called(&operands);
        }
        if !writes(opcode) {
            return;
        }
        let Some((target, sources)) = operands.split_first() else { return };
        let is_integer = kind.is_some_and(|kind| kind.is_integer);
        let done = match (target, kind) {
            (Operand::Register(target), _) if is_condition(opcode, &modifiers) => {
                self.condition(opcode, *target, sources)
            }
            (Operand::Several(targets), Some(kind)) if opcode == b"setp" => {
                targets.iter().for_each(|target| self.forget(*target));
                let target = targets.first().copied();
                target.is_some_and(|target| self.compare(&modifiers, kind, target, sources))
            }
            (_, Some(_)) if opcode == b"shfl" && is_integer => self.exchange(target, sources),
            (Operand::Several(targets), Some(kind)) if opcode == b"mov" && is_integer => {
                self.unpack(targets, kind, sources)
            }
            (Operand::Register(target), Some(kind)) if opcode == b"setp" => {
                self.compare(&modifiers, kind, *target, sources)
            }
            (Operand::Register(target), Some(kind)) if is_integer => {
                let (value, inputs) = match self.result(opcode, &modifiers, kind, sources) {
                    Some(Computed::Node(node)) => {
                        self.write(*target, node);
                        return;
                    }
                    Some(Computed::Value(value, inputs)) => (value, inputs),
                    None => (None, Vec::new()),
                };
                let value = value.unwrap_or_else(|| self.unknown(opcode, &modifiers, kind));
                let node = self.push(value, inputs);
                self.write(*target, node);
                true
            }
            _ => false,
        };
        if !done {
            for target in target.written().to_vec() {
                match kind.filter(|kind| kind.is_integer) {
                    Some(kind) => {
                        let value = self.unknown(opcode, &modifiers, kind);
                        let node = self.push(value, Vec::new());
                        self.write(target, node);
                    }
                    None => self.forget(target),
                }
            }
        }
    }

    fn unknown(&mut self, opcode: &[u8], modifiers: &[&[u8]], kind: Type) -> Poly {
        let why = match opcode {
            b"ld" | b"ldu" | b"atom" if !modifiers.contains(&&b".param"[..]) => Reason::Loaded,
            b"ld" => Reason::Call,
            _ => Reason::Instruction,
        };
        let (low, high) = match opcode {
            b"popc" | b"clz" | b"bfind" => (-1, 64),
            _ => kind.range(),
        };
        self.values.opaque(why, low, high)
    }

    /// Notes the addresses and predicates that the instruction uses.
    fn use_addresses(&mut self, opcode: &[u8], modifiers: &[&[u8]], operands: &[Operand<'_>]) {
        let guard = self.code.instructions[self.at].guard;
        let is_near = |name: &&[u8]| NEAR.iter().any(|near| name.starts_with(near));
        let is_far = opcode == b"cp" || !modifiers.iter().any(is_near);
        let addresses: Vec<u32> = operands
            .iter()
            .filter_map(|operand| match operand {
                Operand::Address(names, _) if is_far => Some(names),
                _ => None,
            })
            .flatten()
            .copied()
            .collect();
        let is_branch = matches!(opcode, b"bra" | b"ret" | b"exit");
        if let Some(guard) = guard
            && (is_branch || !addresses.is_empty())
            && let Some(node) = self.node_of(guard.register)
        {
            let context = self.context;
            self.uses.push(Use { node, context, is_address: false });
        }
        let context = match guard {
            Some(guard) if !addresses.is_empty() => self.guarded(self.context, guard),
            _ => self.context,
        };
        let are_coordinates = modifiers.contains(&&b".tensor"[..]);
        for (place, register) in addresses.into_iter().enumerate() {
            let mut node = self.read(register);
            if are_coordinates && place > 0 {
                let input = self.taken(node, true);
                node = self.push(self.nodes[node].value.clone(), vec![input]);
            }
            self.uses.push(Use { node, context, is_address: true });
        }
    }

    fn called(&mut self, operands: &[Operand<'_>]) {
        let names = operands.iter().filter_map(|operand| match operand {
            Operand::Register(id) => self.code.registers.get(index(*id)),
            _ => None,
        });
        let is_harmless = |name: &&[u8]| HARMLESS.contains(name);
        if !names.clone().any(is_harmless) {
            self.doubt.get_or_insert((Reason::Call, self.at));
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
            (b"%laneid", _) => Kind::UpTo(Poly::constant(31)),
            (b"WARP_SZ", _) => return Poly::constant(32),
            _ => return self.values.opaque(Reason::Instruction, 0, i128::from(u32::MAX)),
        };
        self.values.poly(kind)
    }

    /// An input whose 32 bits the instruction takes as a number.
    pub(super) fn taken(&mut self, node: Source, is_signed: bool) -> Input {
        let value = &self.nodes[node].value;
        if is_signed
            && let Some(atom) = value.as_atom()
            && let Kind::Size(Size::Parameter { .. }, 4) = self.values.get(atom).kind
        {
            self.values.take_as_signed(atom);
        }
        let most = i128::from(if is_signed { u32::MAX >> 1 } else { u32::MAX });
        let (low, high) = self.values.range(value);
        let fits = high <= most && (!is_signed || low >= -most - 1);
        let taken_as = (!fits && !self.values.is_plain(value)).then_some(Signed(is_signed));
        Input { node, context: None, taken_as }
    }

    pub(super) fn input(node: Source) -> Input {
        Input { node, context: None, taken_as: None }
    }

    pub(super) fn inputs(&mut self, nodes: &[Source], kind: Type) -> Vec<Input> {
        let is_number = kind.bits == 32;
        nodes
            .iter()
            .map(
                |node| {
                    if is_number { self.taken(*node, kind.is_signed) } else { Self::input(*node) }
                },
            )
            .collect()
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
        if !KNOWN.contains(&opcode) || has(b".cc") || has(b".sat") {
            return None;
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
        let values: Vec<Poly> = nodes.iter().map(|node| self.nodes[*node].value.clone()).collect();
        let inputs: Vec<Input> = nodes.iter().map(|node| Self::input(*node)).collect();
        let numbers = |trace: &mut Self| trace.inputs(&nodes, kind);
        let one = Poly::constant(1);
        let (value, inputs) = match (opcode, &values[..]) {
            (b"mov" | b"cvta", [value]) => (Some(value.clone()), inputs),
            (b"cvt", [value]) => return self.convert(modifiers, nodes[0], value),
            (b"add", [a, b]) => (a.plus(b, 1), inputs),
            (b"sub", [a, b]) => (a.plus(b, -1), inputs),
            (b"neg", [a]) => (a.scaled(-1), inputs),
            (b"not", [a]) => (a.scaled(-1).and_then(|a| a.plus(&one, -1)), inputs),
            (b"abs", [a]) if self.values.range(a).0 >= 0 => (Some(a.clone()), inputs),
            (b"mul" | b"mad", [a, b, ..]) => {
                if has(b".hi") {
                    let value = self.high_part(a, b, kind);
                    let value =
                        values.get(2).map_or(value.clone(), |c| value.and_then(|it| it.plus(c, 1)));
                    (value, numbers(self))
                } else {
                    let mut inputs = inputs;
                    if has(b".wide") && kind.bits == 32 {
                        for place in 0..2 {
                            inputs[place] = self.taken(nodes[place], kind.is_signed);
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
            (b"shl", [a, b]) => match b.as_constant() {
                Some(by @ 0..64) => (a.scaled(1 << by), inputs),
                _ => (None, inputs),
            },
            (b"shr", [a, b]) => match b.as_constant() {
                // The sign bit, which is 0 if nothing wrapped.
                Some(31) if kind.bits == 32 && self.values.range(a).0 >= 0 => {
                    (Some(Poly::constant(0)), inputs)
                }
                Some(by @ 0..64) if !is_mixed(a) => {
                    let value = self.values.quotient(a, &Poly::constant(1 << by));
                    (Some(value), numbers(self))
                }
                None if self.values.range(a).0 >= 0 => {
                    let value = match self.values.by_reciprocal(a, b) {
                        Some((number, divisor)) => self.values.quotient(&number, &divisor),
                        None => self.values.poly(Kind::UpTo(a.clone())),
                    };
                    (Some(value), numbers(self))
                }
                _ => (None, inputs),
            },
            (b"div", [a, b]) if !is_mixed(a) && b.as_constant() != Some(0) => {
                (Some(self.values.quotient(a, b)), numbers(self))
            }
            (b"rem", [a, b]) if b.as_constant() != Some(0) => match is_mixed(a) {
                true => {
                    let most = b.plus(&one, -1)?;
                    (Some(self.values.poly(Kind::UpTo(most))), inputs)
                }
                false => (Some(self.values.remainder(a, b)), numbers(self)),
            },
            (b"min", [a, b]) => {
                (Some(self.values.poly(Kind::Least(a.clone(), b.clone()))), numbers(self))
            }
            (b"max", [a, b]) => {
                (Some(self.values.poly(Kind::Greatest(a.clone(), b.clone()))), numbers(self))
            }
            (b"and", [a, b]) => (self.masked(a, b), inputs),
            (b"or", [a, b]) => (Some(self.either(a, b)), inputs),
            (b"bfe", [a, from, bits]) if !kind.is_signed => {
                let (from, bits) = (from.as_constant()?, bits.as_constant()?);
                ((0..64).contains(&from) && (0..64).contains(&bits)).then_some(())?;
                let rest = self.values.quotient(a, &Poly::constant(1 << from));
                (Some(self.values.remainder(&rest, &Poly::constant(1 << bits))), inputs)
            }
            _ => (None, inputs),
        };
        if value.is_none()
            && inputs.iter().any(|input| self.nodes[input.node].value.len() > MOST_SUM)
        {
            self.doubt.get_or_insert((Reason::TooComplex, self.at));
        }
        Some(Computed::Value(value, inputs))
    }

    fn convert(&mut self, modifiers: &[&[u8]], node: Source, value: &Poly) -> Option<Computed> {
        let mut types = modifiers.iter().rev().map_while(|name| Type::of(name));
        let (from, to) = (types.next()?, types.next()?);
        if !from.is_integer || !to.is_integer || modifiers.contains(&&b".sat"[..]) {
            return None;
        }
        if to.bits > from.bits && from.bits == 32 {
            let input = self.taken(node, from.is_signed);
            return Some(Computed::Value(Some(value.clone()), vec![input]));
        }
        let (low, high) = self.values.range(value);
        let (least, most) = to.range();
        if to.bits < from.bits && to.bits < 32 && (low < least || high > most) {
            // The upper bits are cut off on purpose.
            let most = (!to.is_signed).then(|| self.values.poly(Kind::UpTo(Poly::constant(most))));
            return Some(Computed::Value(most, vec![Self::input(node)]));
        }
        Some(Computed::Value(Some(value.clone()), vec![Self::input(node)]))
    }

    fn select(&mut self, nodes: [Source; 2], predicate: u32) -> usize {
        if self.nodes[nodes[0]].value == self.nodes[nodes[1]].value {
            return nodes[0];
        }
        let context = self.context;
        let contexts = match self.node_of(predicate) {
            Some(node) => [true, false].map(|truth| self.assume(context, node, truth)),
            None => [context; 2],
        };
        let both = [(nodes[0], contexts[0]), (nodes[1], contexts[1])];
        let node = self.join(predicate, &both, None);
        self.depend_on(node, predicate);
        node
    }

    /// `shfl`: the value of another thread.
    fn exchange(&mut self, target: &Operand<'a>, sources: &[Operand<'a>]) -> bool {
        let Some(node) = sources.first().and_then(|source| self.source(source)) else {
            return false;
        };
        let Some((first, others)) = target.written().split_first() else { return false };
        others.iter().for_each(|other| self.forget(*other));
        let node = self.join(*first, &[(node, 0)], None);
        self.write(*first, node);
        true
    }

    /// `mov.b64 d, {low, high}`
    fn pack(&mut self, parts: &[u32]) -> Option<Computed> {
        let [low, high] = parts else { return None };
        let (low, high) = (self.read(*low), self.read(*high));
        (self.nodes[high].value.as_constant() == Some(0)).then_some(())?;
        let input = self.taken(low, false);
        Some(Computed::Value(Some(self.nodes[low].value.clone()), vec![input]))
    }

    /// `mov.b64 {low, high}, a`
    fn unpack(&mut self, targets: &[u32], kind: Type, sources: &[Operand<'a>]) -> bool {
        let ([low, high], 64, [source]) = (targets, kind.bits, sources) else { return false };
        let Some(node) = self.source(source) else { return false };
        let value = self.nodes[node].value.clone();
        let upper = self.values.quotient(&value, &Poly::constant(1 << 32));
        for (target, value) in [(*low, value), (*high, upper)] {
            let node = self.push(value, vec![Self::input(node)]);
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

/// State spaces that are too small for an index to wrap.
const NEAR: [&[u8]; 4] = [b".shared", b".param", b".local", b".const"];
const AXES: [[&[u8]; 2]; 3] = [[b".x", b".r"], [b".y", b".g"], [b".z", b".b"]];
const HARMLESS: [&[u8]; 4] = [b"vprintf", b"malloc", b"free", b"__assertfail"];
const KNOWN: [&[u8]; 21] = [
    b"mov", b"cvta", b"cvt", b"add", b"sub", b"neg", b"not", b"abs", b"mul", b"mad", b"shl",
    b"shr", b"div", b"rem", b"min", b"max", b"and", b"or", b"bfe", b"selp", b"ld",
];
/// Longer sums are not followed.
const MOST_SUM: usize = 32;
