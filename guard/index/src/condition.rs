//! The conditions of predicates.

/// The condition of a predicate.
#[derive(Clone, Copy)]
pub(super) enum Condition {
    Compare(Compare),
    Not(usize),
    Both(usize, usize),
    AnyOf(usize, usize),
    /// Not known. Also for a floating-point number, which is no value of its own here.
    Unknown,
}

/// `left < right`, or another comparison of two nodes.
#[derive(Clone, Copy)]
pub(super) struct Compare {
    pub(super) order: Order,
    pub(super) is_signed: bool,
    pub(super) bits: u32,
    pub(super) left: usize,
    pub(super) right: usize,
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
