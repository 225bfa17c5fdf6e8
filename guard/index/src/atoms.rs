//! The largest and smallest value of an atom in a launch.

use std::rc::Rc;

use super::bound::{Bound, Bounds, MOST_DEPTH, worse};
use super::poly::Poly;
use super::sizes::{Reason, Size};
use super::values::{Kind, Op, bits_up_to};

impl Bounds<'_> {
    pub(super) fn atom(&mut self, atom: u32, is_upper: bool, context: u32) -> Rc<Bound> {
        let kind = &self.values.get(atom).kind;
        let context = match kind {
            Kind::Binary(Op::Or | Op::Xor, ..) => 0,
            Kind::Binary(..) | Kind::UpTo(..) => context,
            _ => 0,
        };
        let key = (atom, is_upper, context, self.is_certain);
        if let Some(known) = self.known.get(&key) {
            return Rc::clone(known);
        }
        let kind = kind.clone();
        if self.depth >= MOST_DEPTH || !self.open.insert((atom, is_upper)) {
            let is_certain = core::mem::take(&mut self.is_certain);
            let bound = self.unbounded(atom, is_upper, Reason::Loop);
            self.is_certain = is_certain;
            return Rc::new(bound);
        }
        (self.depth, self.inner) = (self.depth + 1, self.inner + 1);
        let bound = Rc::new(self.new_bound(atom, kind, is_upper, context));
        (self.depth, self.inner) = (self.depth - 1, self.inner - 1);
        self.open.remove(&(atom, is_upper));
        if self.open.is_empty() || !matches!(bound.doubt, Some(Reason::Loop)) {
            self.known.insert(key, Rc::clone(&bound));
        }
        bound
    }

    pub(super) fn unbounded(&self, atom: u32, is_upper: bool, why: Reason) -> Bound {
        let atom = self.values.get(atom);
        let (low, high) = (atom.low, atom.high);
        let value = match (self.is_certain, is_upper) {
            (true, true) => 0.clamp(low, high.max(low)),
            (false, true) | (true, false) => high,
            (false, false) => low,
        };
        Bound { doubt: Some(why), ..Bound::constant(value) }
    }

    fn new_bound(&mut self, atom: u32, kind: Kind, is_upper: bool, context: u32) -> Bound {
        match kind {
            Kind::Size(size, _) => {
                let (low, high) = self.size(atom, size);
                let value = if is_upper { high } else { low };
                Bound { value, formula: Poly::atom(atom), doubt: None }
            }
            Kind::ThreadIndex(axis) if is_upper => self.last(Size::Block(axis)),
            Kind::BlockIndex(axis) if is_upper => self.last(Size::Grid(axis)),
            Kind::ThreadIndex(_) | Kind::BlockIndex(_) => Bound::constant(0),
            Kind::Binary(op, one, two) => self
                .operation(op, &one, &two, is_upper, context)
                .unwrap_or_else(|why| self.unbounded(atom, is_upper, why)),
            Kind::UpTo(..) | Kind::Opaque(..) if self.is_certain => {
                self.unbounded(atom, is_upper, Reason::Instruction)
            }
            Kind::UpTo(..) if !is_upper => Bound::constant(0),
            Kind::UpTo(_, most) => {
                Bound { doubt: Some(Reason::Instruction), ..self.upper(&most, context) }
            }
            Kind::Opaque(_, why) => self.unbounded(atom, is_upper, why),
            Kind::Join(number) => match self.values.joins.get(number).cloned() {
                Some(join) => self.join(atom, &join, is_upper),
                None => self.unbounded(atom, is_upper, Reason::Loop),
            },
        }
    }

    /// The bound of an operation, or why there is none.
    fn operation(
        &mut self,
        op: Op,
        one: &Poly,
        two: &Poly,
        is_upper: bool,
        context: u32,
    ) -> Result<Bound, Reason> {
        let is_bitwise = matches!(op, Op::Or | Op::Xor | Op::And);
        if is_bitwise && self.is_certain && !(is_upper && op == Op::Or) {
            return Err(Reason::Instruction);
        }
        if !is_upper && (is_bitwise || op == Op::Remainder) {
            return Ok(Bound::constant(0));
        }
        Ok(match op {
            Op::Quotient => {
                let number = self.bound(one, is_upper, context);
                let by = self.bound(two, is_upper != (number.value >= 0), context);
                // Nothing is divided by zero.
                let divisor = if by.value < 1 { Poly::constant(1) } else { by.formula };
                let value = number.value.div_euclid(by.value.max(1));
                let formula = self.values.quotient(&number.formula, &divisor);
                Bound { value, formula, doubt: worse(number.doubt, by.doubt) }
            }
            Op::Remainder => {
                let (number, mut divisor) = (self.upper(one, context), self.upper(two, context));
                divisor.value -= 1;
                divisor.formula = divisor.formula.plus(&Poly::constant(-1), 1).unwrap_or_default();
                if number.value < divisor.value { number } else { divisor }
            }
            Op::Least | Op::Greatest => {
                let [one, two] = [one, two].map(|it| self.bound(it, is_upper, context));
                let is_less = one.value < two.value;
                let is_one = one.value == two.value || is_less == (op == Op::Least);
                if is_one { one } else { two }
            }
            Op::And => Bound { doubt: Some(Reason::Instruction), ..self.upper(two, context) },
            Op::Or | Op::Xor => {
                let [one, two] = [one, two].map(|it| self.upper(it, context));
                let sum = one.formula.plus(&two.formula, 1);
                let (all, doubt) = (one.value.saturating_add(two.value), Some(Reason::Instruction));
                let most = if one.value >= two.value { one } else { two };
                if self.is_certain {
                    return Ok(Bound { doubt, ..most });
                }
                let formula = sum.ok_or(Reason::TooComplex)?;
                Bound { value: all.min(bits_up_to(most.value)), formula, doubt }
            }
        })
    }

    pub(super) fn bound(&mut self, poly: &Poly, is_upper: bool, context: u32) -> Bound {
        if is_upper { self.upper(poly, context) } else { self.lower(poly, context) }
    }

    /// The index of the last block or thread of a grid or block of this size.
    fn last(&mut self, size: Size) -> Bound {
        let atom = self.values.atom(Kind::Size(size, 4));
        let value = self.size(atom, size).1 - 1;
        let formula = Poly::atom(atom).plus(&Poly::constant(-1), 1).unwrap_or_default();
        Bound { value, formula, doubt: None }
    }

    pub(super) fn size(&self, atom: u32, size: Size) -> (i128, i128) {
        let (low, high) = (self.values.get(atom).low, self.values.get(atom).high);
        match (self.sizes.get(size), size) {
            (Some(value), _) => (value, value),
            (None, Size::Grid(1 | 2)) if !self.is_extended => (low, MOST_LEGAL),
            (None, _) => (low, high),
        }
    }

    /// The size, or the largest one if it is not given.
    pub(super) fn largest(&self, size: Size) -> i128 {
        let own = self.values.known(&Kind::Size(size, 4)).map(|atom| self.size(atom, size).1);
        own.or(self.sizes.get(size)).unwrap_or_else(|| self.values.range_of(&Kind::Size(size, 4)).1)
    }
}

/// The blocks along y and z that a driver takes.
const MOST_LEGAL: i128 = 65_535;
