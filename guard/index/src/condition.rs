//! The conditions of predicates.

use super::poly::Poly;

/// The condition of a predicate. Others are named by their nodes.
#[derive(Clone)]
pub(super) enum Condition {
    Compare(Compare),
    Not(usize),
    Both(usize, usize),
    AnyOf(usize, usize),
    /// Not known, but whether it depends on data alone. Also for a floating-point number, which is no value of its own here.
    Unknown(bool),
}

/// `left < right`, or another comparison of two values.
#[derive(Clone)]
pub(super) struct Compare {
    pub(super) order: Order,
    pub(super) is_signed: bool,
    pub(super) bits: u32,
    pub(super) left: Poly,
    pub(super) right: Poly,
    /// The node of the left value.
    pub(super) node: usize,
}

impl Compare {
    pub(super) fn holds(&self, left: i128, right: i128) -> bool {
        // Without its sign, a negative number is large.
        let number = |it: i128| match self.is_signed || it >= 0 {
            true => it,
            false => it.rem_euclid(1 << self.bits.min(64)),
        };
        match self.order {
            Order::Less => number(left) < number(right),
            Order::LessOrEqual => number(left) <= number(right),
            Order::Equal => left == right,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Less,
    LessOrEqual,
    Equal,
}

impl Order {
    /// The comparison that a modifier names: the order, whether its sides are swapped, and whether it is negated.
    pub(super) fn of(modifier: &[u8]) -> Option<(Self, bool, bool)> {
        Some(match modifier {
            b".lt" | b".lo" => (Self::Less, false, false),
            b".le" | b".ls" => (Self::LessOrEqual, false, false),
            b".gt" | b".hi" => (Self::Less, true, false),
            b".ge" | b".hs" => (Self::LessOrEqual, true, false),
            b".eq" => (Self::Equal, false, false),
            b".ne" => (Self::Equal, false, true),
            _ => return None,
        })
    }
}
