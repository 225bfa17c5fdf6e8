//! Values of registers as polynomials over atoms, and the facts about them at each place.

use std::collections::HashMap;

use super::condition::Condition;
use super::poly::Poly;
use super::sizes::{Reason, Size};

/// The place of what has this number.
pub(super) fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

/// The meaning of an atom.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    /// A size, and the number of bytes that are read of it.
    Size(Size, u64),
    ThreadIndex(usize),
    BlockIndex(usize),
    Binary(Op, Poly, Poly),
    /// Some value from 0 to this one. The number tells values with the same limit apart.
    UpTo(usize, Poly),
    /// One of several values, by the number of its [`Join`].
    Join(usize),
    /// Unknown, for this reason. The number makes the atom unique.
    Opaque(usize, Reason),
}

/// An operation on two values that no polynomial expresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Op {
    /// A quotient, rounded down.
    Quotient,
    Remainder,
    Least,
    Greatest,
    Or,
    Xor,
    /// Its second operand is not negative.
    And,
}

impl Kind {
    /// The values that it is computed from. A [`Join`] has others.
    pub(super) fn operands(&self) -> impl Iterator<Item = &Poly> {
        let (one, two) = match self {
            Self::Binary(_, one, two) => (Some(one), Some(two)),
            Self::UpTo(_, most) => (Some(most), None),
            _ => (None, None),
        };
        one.into_iter().chain(two)
    }
}

pub(super) struct Atom {
    pub(super) kind: Kind,
    /// The atom's range in all launches.
    pub(super) low: i128,
    pub(super) high: i128,
    /// Whether the atom depends only on sizes of the launch and parameters.
    pub(super) is_size: bool,
    /// Whether a loop may make it less than `low`.
    pub(super) is_in_loop: bool,
    pub(super) origin: Origin,
}

/// What a value depends on. The last applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// Constants, and values from memory.
    #[default]
    Data,
    /// Thread indices, block sizes and parameters.
    Launch,
    /// Block indices and grid sizes.
    Grid,
}

/// A register that has one of several values, depending on the path.
#[derive(Clone)]
pub(super) struct Join {
    pub(super) register: u32,
    pub(super) incoming: Vec<Incoming>,
    /// For the header of a loop, its first atom. Older atoms do not change in the loop.
    pub(super) loop_atoms: Option<u32>,
}

#[derive(Clone)]
pub(super) struct Incoming {
    pub(super) value: Poly,
    /// The context of the place that the value comes from.
    pub(super) context: u32,
    pub(super) is_back: bool,
}

/// The facts at a place.
#[derive(Default)]
pub(super) struct Context {
    pub(super) parent: Option<u32>,
    /// Polynomials that are at most zero.
    pub(super) facts: Vec<Poly>,
    /// Polynomials that are not zero.
    pub(super) unequal: Vec<Poly>,
    /// The nodes of conditions that are not expressed by facts, and whether they are true.
    pub(super) unfollowed: Vec<(usize, bool)>,
    /// Whether a condition of the launch is not followed, so that control may never come here.
    pub(super) is_open: bool,
}

#[derive(Default)]
pub(super) struct Values {
    pub(super) atoms: Vec<Atom>,
    ids: HashMap<Kind, u32>,
    pub(super) joins: Vec<Join>,
    pub(super) contexts: Vec<Context>,
    /// The conditions of predicates by their nodes.
    pub(super) conditions: HashMap<usize, Condition>,
    /// The contexts that combine the facts of two others.
    combined: HashMap<(u32, u32), u32>,
    /// The block sizes that the entry states.
    pub(super) block: [Option<(i128, i128)>; 3],
    /// Steps that were taken.
    pub(super) steps: u64,
    /// The origin of new values that are not followed.
    pub(super) unfollowed: Origin,
}

impl Values {
    pub(super) fn new(block: [Option<(i128, i128)>; 3]) -> Self {
        Self { block, ..Self::default() }
    }

    pub(super) fn atom(&mut self, kind: Kind) -> u32 {
        if let Some(known) = self.ids.get(&kind) {
            return *known;
        }
        let (low, high) = self.range_of(&kind);
        self.insert(kind, low, high)
    }

    pub(super) fn poly(&mut self, kind: Kind) -> Poly {
        Poly::atom(self.atom(kind))
    }

    pub(super) fn binary(&mut self, op: Op, one: &Poly, two: &Poly) -> Poly {
        self.poly(Kind::Binary(op, one.clone(), two.clone()))
    }

    fn insert(&mut self, kind: Kind, low: i128, high: i128) -> u32 {
        let id = u32::try_from(self.atoms.len()).unwrap_or(u32::MAX);
        let is_size = match &kind {
            Kind::Size(..) => true,
            Kind::Binary(Op::Quotient | Op::Least | Op::Greatest, one, two) => {
                self.is_size(one) && self.is_size(two)
            }
            _ => false,
        };
        let changes = |poly: &Poly| poly.atoms().any(|atom| self.get(atom).is_in_loop);
        let is_in_loop = match &kind {
            Kind::Binary(Op::Least | Op::Greatest, ..) => kind.operands().any(changes),
            Kind::Join(number) => self.joins.get(*number).is_some_and(|join| {
                join.loop_atoms.is_some() || join.incoming.iter().any(|one| changes(&one.value))
            }),
            _ => false,
        };
        let origin = match &kind {
            Kind::Size(Size::Grid(_), _) | Kind::BlockIndex(_) => Origin::Grid,
            Kind::Size(..) | Kind::ThreadIndex(_) => Origin::Launch,
            Kind::UpTo(..) | Kind::Opaque(..) => self.unfollowed,
            Kind::Binary(..) | Kind::Join(_) => {
                self.parts(&kind).map(|part| self.origin(part)).max().unwrap_or_default()
            }
        };
        self.ids.insert(kind.clone(), id);
        self.atoms.push(Atom { kind, low, high, is_size, is_in_loop, origin });
        self.steps += 1;
        id
    }

    /// The values that `kind` is computed from.
    pub(super) fn parts<'v>(&'v self, kind: &'v Kind) -> impl Iterator<Item = &'v Poly> {
        let join = if let Kind::Join(number) = kind { self.joins.get(*number) } else { None };
        let incoming = join.into_iter().flat_map(|join| &join.incoming);
        kind.operands().chain(incoming.map(|incoming| &incoming.value))
    }

    pub(super) fn origin(&self, poly: &Poly) -> Origin {
        poly.atoms().map(|atom| self.get(atom).origin).max().unwrap_or_default()
    }

    /// Some value from 0 to `most`.
    pub(super) fn up_to(&mut self, most: Poly) -> Poly {
        self.poly(Kind::UpTo(self.atoms.len(), most))
    }

    pub(super) fn opaque(&mut self, why: Reason, low: i128, high: i128) -> Poly {
        let kind = Kind::Opaque(self.atoms.len(), why);
        Poly::atom(self.insert(kind, low, high))
    }

    pub(super) fn join(&mut self, join: Join, low: i128, high: i128) -> Poly {
        let kind = Kind::Join(self.joins.len());
        self.joins.push(join);
        Poly::atom(self.insert(kind, low, high))
    }

    pub(super) fn context(&mut self, context: Context) -> u32 {
        self.contexts.push(context);
        u32::try_from(self.contexts.len() - 1).unwrap_or(u32::MAX)
    }

    /// The context with the facts of two contexts.
    pub(super) fn both(&mut self, one: u32, other: u32) -> u32 {
        if let Some(known) = self.combined.get(&(one, other)) {
            return *known;
        }
        let (parent, facts) = (Some(other), self.facts(one));
        let is_open = self.is_open(one) || self.is_open(other);
        let unfollowed = self.at(one).map(|one| one.unfollowed.clone()).unwrap_or_default();
        let both =
            self.context(Context { parent, facts, unfollowed, is_open, ..Context::default() });
        self.combined.insert((one, other), both);
        both
    }

    /// Whether control may never come to `context`.
    pub(super) fn is_open(&self, context: u32) -> bool {
        self.at(context).is_some_and(|one| one.is_open)
    }

    pub(super) fn at(&self, context: u32) -> Option<&Context> {
        self.contexts.get(index(context))
    }

    /// The facts at `context`, the nearest first.
    pub(super) fn facts(&self, context: u32) -> Vec<Poly> {
        let mut facts = Vec::new();
        let mut next = Some(context);
        for _ in 0..MOST_CONTEXTS {
            let Some(context) = next.and_then(|id| self.at(id)) else { break };
            facts.extend(context.facts.iter().cloned());
            next = context.parent;
            if facts.len() >= MOST_FACTS {
                break;
            }
        }
        facts.truncate(MOST_FACTS);
        facts
    }

    pub(super) fn get(&self, atom: u32) -> &Atom {
        // Ids come from `insert` alone.
        &self.atoms[index(atom)]
    }

    /// Whether `value` is no result of arithmetic, so that it cannot have wrapped.
    /// Fewer bits than 32 may be cut off.
    pub(super) fn is_plain(&self, value: &Poly, bits: u32) -> bool {
        let kind = value.as_atom().map(|atom| &self.get(atom).kind);
        let is_whole = bits == 32 || self.origin(value) == Origin::Data;
        is_whole
            && matches!(
                kind,
                Some(
                    Kind::Size(..) | Kind::ThreadIndex(_) | Kind::BlockIndex(_) | Kind::Opaque(..)
                )
            )
    }

    /// A parameter that an instruction takes as a signed number is at most the largest signed number.
    pub(super) fn take_as_signed(&mut self, parameter: u32) {
        let high = &mut self.atoms[index(parameter)].high;
        *high = (*high).min(i128::from(i32::MAX));
    }

    pub(super) fn is_size(&self, poly: &Poly) -> bool {
        poly.atoms().all(|atom| self.get(atom).is_size)
    }

    /// Whether `poly` may be negative in a launch, as far as its range tells.
    pub(super) fn may_be_negative(&self, poly: &Poly) -> bool {
        self.range(poly).0 < 0 || poly.atoms().any(|atom| self.get(atom).is_in_loop)
    }

    /// The range of `poly` in all launches.
    pub(super) fn range(&self, poly: &Poly) -> (i128, i128) {
        range_with(poly, |atom| (self.get(atom).low, self.get(atom).high))
    }

    pub(super) fn known(&self, kind: &Kind) -> Option<u32> {
        self.ids.get(kind).copied()
    }

    pub(super) fn range_of(&self, kind: &Kind) -> (i128, i128) {
        let block = |axis: usize| {
            let stated = self.block.get(axis).copied().flatten();
            stated.unwrap_or((1, MOST_THREADS.get(axis).copied().unwrap_or(1)))
        };
        match kind {
            Kind::Size(Size::Grid(_), _) => (1, MOST_BLOCKS),
            Kind::Size(Size::Block(axis), _) => block(*axis),
            Kind::Size(Size::Parameter { .. }, bytes) => (0, most_of(*bytes)),
            Kind::ThreadIndex(axis) => (0, block(*axis).1 - 1),
            Kind::BlockIndex(_) => (0, MOST_BLOCKS - 1),
            Kind::Binary(op, one, two) => {
                let (one, two) = (self.range(one), self.range(two));
                match op {
                    Op::Quotient => (0, one.1.max(0) / two.0.max(1)),
                    Op::Remainder => (0, one.1.min(two.1 - 1).max(0)),
                    Op::Least => (one.0.min(two.0), one.1.min(two.1)),
                    Op::Greatest => (one.0.max(two.0), one.1.max(two.1)),
                    Op::And => (0, two.1.max(0)),
                    Op::Or | Op::Xor => (0, bits_up_to(one.1.max(two.1))),
                }
            }
            Kind::UpTo(_, most) => (0, self.range(most).1.max(0)),
            Kind::Join(_) | Kind::Opaque(..) => (0, 0),
        }
    }

    /// `number / divisor`, rounded down. Exact for numbers that are not negative.
    pub(super) fn quotient(&mut self, number: &Poly, divisor: &Poly) -> Poly {
        self.quotient_within(number, divisor, 0)
    }

    fn quotient_within(&mut self, number: &Poly, divisor: &Poly, depth: usize) -> Poly {
        if divisor.as_constant() == Some(1) {
            return number.clone();
        }
        if number.len() == 0 {
            return Poly::default();
        }
        let Some((product, coefficient)) = divisor.as_term() else {
            return self.binary(Op::Quotient, number, divisor);
        };
        let (whole, rest) = number.divided_by_term(product, coefficient);
        let (low, high) = self.range(&rest);
        if coefficient > 0 && low >= 0 && (whole.len() > 0 || high < self.range(divisor).0) {
            if high < self.range(divisor).0 {
                return whole;
            }
            let rest = self.quotient_within(&rest, divisor, depth + 1);
            let sum = rest.plus(&whole, 1);
            return sum.unwrap_or_else(|| self.opaque(Reason::TooComplex, 0, i128::from(u64::MAX)));
        }
        // Quotients of quotients: (n / a + b) / c is (n + a b) / (a c).
        if depth < 8
            && let Some((inner, own, rest)) = self.inner_quotient(number)
            && let Some(scaled) = rest.times(&own).and_then(|rest| rest.plus(&inner, 1))
            && let Some(divisor) = own.times(divisor)
            && self.range(&scaled).0 >= 0
        {
            return self.quotient_within(&scaled, &divisor, depth + 1);
        }
        if let Some(divisor) = self.by_multiplication(number, divisor) {
            let (number, divisor) = divisor;
            return self.quotient_within(&number, &Poly::constant(divisor), depth + 1);
        }
        self.binary(Op::Quotient, number, divisor)
    }

    /// The newest quotient of `poly` with coefficient 1: its dividend, its divisor, and the rest of `poly`.
    fn inner_quotient(&self, poly: &Poly) -> Option<(Poly, Poly, Poly)> {
        let newest = poly
            .terms()
            .filter_map(|(product, coefficient)| match product {
                [atom] if coefficient == 1 => Some(*atom),
                _ => None,
            })
            .filter(|atom| matches!(self.get(*atom).kind, Kind::Binary(Op::Quotient, ..)))
            .max()?;
        let Kind::Binary(Op::Quotient, number, divisor) = &self.get(newest).kind else {
            return None;
        };
        let rest = poly.split(newest).1;
        let is_exact = rest.len() == 0 || divisor.as_constant().is_some();
        is_exact.then(|| (number.clone(), divisor.clone(), rest))
    }

    /// Dividend and divisor, if `number / divisor` is a division by means of a reciprocal.
    fn by_multiplication(&self, number: &Poly, divisor: &Poly) -> Option<(Poly, i128)> {
        let power = divisor.as_constant().filter(|it| it.unsigned_abs().is_power_of_two())?;
        let factor = i128::try_from(number.content()).ok().filter(|factor| *factor > 256)?;
        let own = number.divided_by_term(&[], factor).0;
        let by = (power / factor).checked_add(1)?;
        let error = by.checked_mul(factor)?.checked_sub(power)?;
        let widest = if power < 1 << 64 { i128::from(u32::MAX) } else { i128::from(u64::MAX) };
        let most = self.range(&own).1.min(widest);
        let is_exact = self.range(&own).0 >= 0 && error.checked_mul(most)? < power;
        (is_exact && by > 1).then_some((own, by))
    }

    /// Dividend and divisor, if `sum >> shift` is a division by a parameter of three words: a reciprocal, its shift and
    /// the divisor. `sum` is `n * reciprocal / 2^32 + n`, and the host chose the reciprocal so that this is exact.
    pub(super) fn by_reciprocal(&mut self, sum: &Poly, shift: &Poly) -> Option<(Poly, Poly)> {
        let Kind::Size(Size::Parameter { index, offset: 4 }, 4) = self.get(shift.as_atom()?).kind
        else {
            return None;
        };
        let [reciprocal, divisor] =
            [0, 8].map(|offset| self.poly(Kind::Size(Size::Parameter { index, offset }, 4)));
        let number = sum.atoms().find_map(|atom| {
            let Kind::Binary(Op::Quotient, product, power) = &self.get(atom).kind else {
                return None;
            };
            let number = sum.plus(&Poly::atom(atom), -1)?;
            let is_power = power.as_constant() == Some(1 << 32);
            (is_power && number.times(&reciprocal)? == *product).then_some(number)
        })?;
        Some((number, divisor))
    }

    /// The bits that `poly` can have.
    pub(super) fn bits(&self, poly: &Poly) -> i128 {
        let of = |poly: &Poly, unit: u32| {
            let (low, high) = self.range(poly);
            let most = if low < 0 { -1 } else { bits_up_to(high) };
            most & -(1 << unit.min(64))
        };
        let mut all = 0;
        for (product, factor) in poly.terms() {
            let own = match product.is_empty() && factor > 0 {
                true => factor,
                false => of(
                    &Poly::term(product.iter().copied().collect(), factor),
                    factor.trailing_zeros(),
                ),
            };
            // Terms with a bit in common may carry.
            if all & own != 0 {
                return of(poly, poly.content().trailing_zeros());
            }
            all |= own;
        }
        all
    }

    pub(super) fn remainder(&mut self, number: &Poly, divisor: &Poly) -> Poly {
        let quotient = self.quotient(number, divisor);
        let rest = quotient.times(divisor).and_then(|whole| number.plus(&whole, -1));
        rest.unwrap_or_else(|| self.up_to(divisor.clone()))
    }
}

/// All bits that a number up to `most` can have.
pub(super) fn bits_up_to(most: i128) -> i128 {
    let above = (most.clamp(0, 1 << 64).unsigned_abs() + 1).next_power_of_two();
    i128::try_from(above - 1).unwrap_or(i128::MAX)
}

/// The range of `poly`, if its atoms have these ranges.
pub(super) fn range_with(poly: &Poly, mut range: impl FnMut(u32) -> (i128, i128)) -> (i128, i128) {
    let (mut low, mut high) = (0_i128, 0_i128);
    for (product, coefficient) in poly.terms() {
        let (one, two) = product.iter().fold((coefficient, coefficient), |(least, most), atom| {
            let (low, high) = range(*atom);
            let ends = [
                least.saturating_mul(low),
                least.saturating_mul(high),
                most.saturating_mul(low),
                most.saturating_mul(high),
            ];
            ends.iter().fold((i128::MAX, i128::MIN), |(a, b), end| (a.min(*end), b.max(*end)))
        });
        low = low.saturating_add(one);
        high = high.saturating_add(two);
    }
    (low, high)
}

/// The largest value of a parameter, which is a size or a stride: not negative.
fn most_of(bytes: u64) -> i128 {
    match bytes {
        1 => 0xff,
        2 => 0xffff,
        4 => i128::from(u32::MAX),
        _ => i128::from(i64::MAX),
    }
}

/// The blocks of a grid along any axis: a driver takes fewer along y and z, a launch in parts or in another form does
/// not.
pub(super) const MOST_BLOCKS: i128 = (1 << 31) - 1;
/// The number of the lane, as [`Kind::UpTo`].
pub(super) const LANE: usize = usize::MAX;
/// A limit that all devices share.
const MOST_THREADS: [i128; 3] = [1024, 1024, 64];

/// Older facts are rarely needed, and each costs time.
const MOST_FACTS: usize = 24;
const MOST_CONTEXTS: usize = 256;
