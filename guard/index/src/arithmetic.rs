//! The results of arithmetic, bitwise operations and comparisons.

use super::condition::{Compare, Condition, Order};
use super::operand::{Operand, Type};
use super::poly::Poly;
use super::trace::{Source, Trace};
use super::values::Kind;

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

    pub(super) fn high_part(&mut self, a: &Poly, b: &Poly, kind: Type) -> Option<Poly> {
        let product = Self::product(a, b, kind, true)?;
        Some(self.values.quotient(&product, &Poly::constant(1 << kind.bits.min(64))))
    }

    /// `a & b`
    pub(super) fn masked(&mut self, a: &Poly, b: &Poly) -> Option<Poly> {
        let (value, mask) = match (a.as_constant(), b.as_constant()) {
            (_, Some(mask)) => (a, mask),
            (Some(mask), _) => (b, mask),
            _ => {
                let small = if self.values.range(a).1 <= self.values.range(b).1 { a } else { b };
                return (self.values.range(small).0 >= 0)
                    .then(|| self.values.poly(Kind::UpTo(small.clone())));
            }
        };
        let low_bits = mask.checked_add(1)?;
        if low_bits > 0 && low_bits.unsigned_abs().is_power_of_two() {
            if self.values.range(value).0 < 0 || is_mixed(value) {
                return Some(self.values.poly(Kind::UpTo(Poly::constant(mask))));
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
        (mask > 0).then(|| self.values.poly(Kind::UpTo(Poly::constant(mask))))
    }

    /// `a | b`, which is a sum if no bit is set in both.
    pub(super) fn either(&mut self, a: &Poly, b: &Poly) -> Poly {
        let sum = (self.values.bits(a) & self.values.bits(b) == 0).then(|| a.plus(b, 1)).flatten();
        sum.unwrap_or_else(|| self.values.poly(Kind::Either(a.clone(), b.clone())))
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
        let inputs = match order {
            Order::Equal => Vec::new(),
            _ => self.inputs(&[left, right], kind),
        };
        let compare = Compare { order, is_signed: kind.is_signed, left, right };
        let mut node = self.push(Poly::default(), inputs);
        self.nodes[node].condition = Some(Condition::Compare(compare));
        if is_negated {
            node = self.logical(Condition::Not(node), &[node]);
        }
        if let [Operand::Register(other)] = rest {
            let Some(other) = self.node_of(*other) else { return false };
            node = match modifiers.get(1) {
                Some(&b".and") => self.logical(Condition::Both(node, other), &[node, other]),
                Some(&b".or") => self.logical(Condition::AnyOf(node, other), &[node, other]),
                _ => return false,
            };
        }
        self.write_condition(target, node);
        true
    }

    fn logical(&mut self, condition: Condition, nodes: &[Source]) -> usize {
        let inputs = nodes.iter().map(|node| Self::input(*node)).collect();
        let node = self.push(Poly::default(), inputs);
        self.nodes[node].condition = Some(condition);
        node
    }

    /// A predicate that is itself written under a predicate is unknown.
    fn write_condition(&mut self, target: u32, node: usize) {
        match self.code.instructions[self.at].guard {
            Some(_) => self.forget(target),
            None => self.write(target, node),
        }
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
            let Operand::Register(register) = operand else { return false };
            let Some(node) = self.node_of(*register) else { return false };
            nodes.push(node);
        }
        let condition = match (opcode, &nodes[..]) {
            (b"mov", [one]) => {
                self.write_condition(target, *one);
                return true;
            }
            (b"not", [one]) => Condition::Not(*one),
            (b"and", [one, two]) => Condition::Both(*one, *two),
            (b"or", [one, two]) => Condition::AnyOf(*one, *two),
            _ => return false,
        };
        let node = self.logical(condition, &nodes);
        self.write_condition(target, node);
        true
    }
}

/// Whether `value` was multiplied by a large odd constant, as hash functions do: it is meant to wrap.
pub(super) fn is_mixed(value: &Poly) -> bool {
    value.terms().any(|(product, factor)| {
        !product.is_empty() && factor % 2 != 0 && factor.unsigned_abs() > 1 << 16
    })
}
