//! The results of arithmetic, bitwise operations and comparisons.

use super::condition::{Compare, Condition, Order};
use super::operand::{Operand, Type};
use super::poly::Poly;
use super::trace::{Input, Source, Trace};
use super::values::Op;

impl<'a> Trace<'_, 'a> {
    pub(super) fn product(a: &Poly, b: &Poly, kind: Type, is_high: bool) -> Option<Poly> {
        // Unsigned `mul.wide` and `mul.hi` take a negative constant as a large number.
        let plain = |value: &Poly| match value.as_constant() {
            Some(constant) if constant < 0 && !kind.is_signed && (is_high || kind.bits == 32) => {
                Poly::constant(constant + (1 << kind.bits.min(64)))
            }
            _ => value.clone(),
        };
        plain(a).times(&plain(b))
    }

    /// `a & b`
    pub(super) fn masked(&mut self, a: &Poly, b: &Poly) -> Option<Poly> {
        let (value, mask) = match (a.as_constant(), b.as_constant()) {
            (_, Some(mask)) => (a, mask),
            (Some(mask), _) => (b, mask),
            _ => {
                let ranges = [a, b].map(|value| self.values.range(value));
                let is_second = ranges[0].0 < 0 || ranges[1].0 >= 0 && ranges[1].1 <= ranges[0].1;
                let (large, small) = if is_second { (a, b) } else { (b, a) };
                return (ranges[usize::from(is_second)].0 >= 0)
                    .then(|| self.values.binary(Op::And, large, small));
            }
        };
        let low_bits = mask.checked_add(1)?;
        if low_bits > 0 && low_bits.unsigned_abs().is_power_of_two() {
            if self.values.range(value).0 < 0 || mixing(value) > Mixing::None {
                return Some(self.values.binary(Op::And, value, &Poly::constant(mask)));
            }
            return Some(self.values.remainder(value, &Poly::constant(low_bits)));
        }
        // Bits up to the highest that the value can have.
        let lowest = 1 << mask.trailing_zeros().min(64);
        let covers = mask > 0 && (mask + lowest).unsigned_abs().is_power_of_two();
        let (low, high) = self.values.range(value);
        if covers && low >= 0 && high < mask + lowest {
            let unit = Poly::constant(lowest);
            return self.values.quotient(value, &unit).times(&unit);
        }
        if mask < 0 && mask.unsigned_abs().is_power_of_two() {
            let unit = Poly::constant(-mask);
            return self.values.quotient(value, &unit).times(&unit);
        }
        (mask > 0).then(|| self.values.binary(Op::And, value, &Poly::constant(mask)))
    }

    /// `a | b`, which is a sum if no bit is set in both.
    pub(super) fn either(&mut self, a: &Poly, b: &Poly) -> Poly {
        let sum = (self.values.bits(a) & self.values.bits(b) == 0).then(|| a.plus(b, 1)).flatten();
        sum.unwrap_or_else(|| self.values.binary(Op::Or, a, b))
    }

    pub(super) fn compare(
        &mut self,
        modifiers: &[&[u8]],
        kind: Type,
        target: u32,
        operands: &[Operand<'a>],
    ) -> bool {
        let order = modifiers.first().and_then(|name| Order::of(name)).filter(|_| kind.is_integer);
        let ([one, two, rest @ ..], Some((order, is_exchanged, is_negated))) = (operands, order)
        else {
            return false;
        };
        let (Some(one), Some(two)) = (self.source(one), self.source(two)) else { return false };
        let (left, right) = if is_exchanged { (two, one) } else { (one, two) };
        if [left, right].iter().any(|node| self.nodes[*node].is_predicate) {
            return false;
        }
        let inputs = match order {
            // A comparison modulo the type may be meant.
            Order::Equal => [left, right].map(|node| self.taken(node, kind, true)).into(),
            _ => self.inputs(&[left, right], kind),
        };
        let [left_value, right] = [left, right].map(|node| self.nodes[node].value.clone());
        let Type { is_signed, bits, .. } = kind;
        let compare = Compare { order, is_signed, bits, left: left_value, right, node: left };
        let mut node = self.predicate(Condition::Compare(compare), inputs);
        if is_negated {
            node = self.logical(Condition::Not(node), &[node]);
        }
        if let [Operand::Register(other)] = rest {
            let other = self.read(*other);
            node = match modifiers.get(1) {
                Some(&b".and") => self.logical(Condition::Both(node, other), &[node, other]),
                Some(&b".or") => self.logical(Condition::AnyOf(node, other), &[node, other]),
                _ => return false,
            };
        }
        self.write(target, node);
        true
    }

    fn logical(&mut self, condition: Condition, nodes: &[Source]) -> usize {
        self.predicate(condition, nodes.iter().map(|node| Input::of(*node)).collect())
    }

    /// `and.pred`, `or.pred` and `not.pred`
    pub(super) fn condition(
        &mut self,
        opcode: &[u8],
        target: u32,
        operands: &[Operand<'a>],
    ) -> bool {
        let mut nodes = Vec::new();
        for operand in operands {
            nodes.push(match operand {
                Operand::Register(register) => self.read(*register),
                // 0 < 1, or else 0 < 0
                Operand::Constant(value) => {
                    let (left, right) = (Poly::default(), Poly::constant((*value != 0).into()));
                    let node = self.push(left.clone(), Vec::new());
                    let (order, is_signed, bits) = (Order::Less, true, 32);
                    let compare = Compare { order, is_signed, bits, left, right, node };
                    self.predicate(Condition::Compare(compare), Vec::new())
                }
                _ => return false,
            });
        }
        let condition = match (opcode, &nodes[..]) {
            (b"mov", [one]) => {
                self.write(target, *one);
                return true;
            }
            (b"not", [one]) => Condition::Not(*one),
            (b"and", [one, two]) => Condition::Both(*one, *two),
            (b"or", [one, two]) => Condition::AnyOf(*one, *two),
            _ => return false,
        };
        let node = self.logical(condition, &nodes);
        self.write(target, node);
        true
    }
}

/// How much a value looks as if it were meant to wrap: hash functions multiply by large odd constants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mixing {
    None,
    /// Possibly a stride.
    Some,
    /// A product of 32 bits.
    Hash,
    /// A product of 64 bits.
    Wide,
}

pub(super) fn mixing(value: &Poly) -> Mixing {
    let factors = value
        .terms()
        .filter(|(product, _)| !product.is_empty())
        .map(|(_, factor)| factor.unsigned_abs());
    match factors.map(|factor| factor >> factor.trailing_zeros().min(127)).max() {
        Some(odd) if odd > 1 << 33 => Mixing::Wide,
        Some(odd) if odd > 1 << 24 => Mixing::Hash,
        Some(odd) if odd > 1 << 16 => Mixing::Some,
        _ => Mixing::None,
    }
}
