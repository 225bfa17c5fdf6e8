//! Bounds of loop variables, and equal values.

use super::bound::{Bound, Bounds, greatest_of, is_unbounded};
use super::poly::{Poly, without};
use super::sizes::Reason;
use super::values::index;
use super::values::{Incoming, Join, Kind, Op};

impl Bounds<'_> {
    pub(super) fn join(&mut self, atom: u32, join: &Join, is_upper: bool) -> Bound {
        let mut bounds = Vec::new();
        for incoming in join.incoming.iter().filter(|incoming| !incoming.is_back) {
            let is_open = self.values.is_open(incoming.context);
            if !(is_open && self.is_certain) {
                bounds
                    .push(self.bound(&incoming.value, is_upper, incoming.context).doubted(is_open));
            }
        }
        if join.loop_atoms.is_some() {
            match self.later(atom, join, is_upper) {
                Ok(later) => bounds.extend(later),
                Err(why) if self.is_certain => {
                    bounds.iter_mut().for_each(|bound| bound.doubt = Some(why));
                }
                Err(why) => return self.unbounded(atom, is_upper, why),
            }
        }
        let found = match is_upper {
            true => greatest_of(bounds),
            false => bounds.into_iter().min_by_key(|bound| bound.value),
        };
        found.unwrap_or_else(|| self.unbounded(atom, is_upper, Reason::Loop))
    }

    /// The bounds of a loop's variable after the first iteration.
    fn later(&mut self, atom: u32, join: &Join, is_upper: bool) -> Result<Vec<Bound>, Reason> {
        let step = linear(atom, join).map(|(_, step)| step);
        if let Some(step) = &step {
            let moves_away = match is_upper {
                true => self.upper(step, 0).value <= 0,
                false => self.lower(step, 0).value >= 0,
            };
            if moves_away {
                return Ok(Vec::new());
            }
        }
        let mut bounds = Vec::new();
        for incoming in join.incoming.iter().filter(|incoming| incoming.is_back) {
            if incoming.value.as_atom() == Some(atom) {
                continue;
            }
            if self.is_part(&incoming.value, atom, 0) {
                // It falls to zero at the most, and may be small where it is used.
                bounds.push(Bound { doubt: Some(Reason::Instruction), ..Bound::constant(0) });
                if self.is_certain {
                    return Err(Reason::TooComplex);
                }
                continue;
            }
            // A loop that ends when its variable equals a value reaches that value.
            let end = self.values.unequal(incoming.context).iter().find_map(|unequal| {
                let (factor, rest) = unequal.split(atom);
                let sign = factor.as_constant().filter(|sign| sign.abs() == 1)?;
                rest.scaled(-sign)
            });
            let is_unit = step.as_ref().and_then(Poly::as_constant).is_some();
            let bound = match end.filter(|_| is_unit) {
                Some(end) => self.bound(&end, is_upper, incoming.context),
                None => self.bound(&incoming.value, is_upper, incoming.context),
            };
            if let Some(why) = bound.doubt.filter(is_unbounded) {
                return Ok(vec![self.by_sibling(atom, join, is_upper, why)?]);
            }
            bounds.push(bound);
        }
        Ok(bounds)
    }

    /// Whether `poly` is `atom`, or a quotient, remainder or masked part of it.
    fn is_part(&self, poly: &Poly, atom: u32, depth: usize) -> bool {
        let Some(own) = poly.as_atom().filter(|_| depth < MOST_PARTS) else { return false };
        match &self.values.get(own).kind {
            _ if own == atom => true,
            Kind::Binary(Op::Quotient | Op::Remainder | Op::And, one, _) => {
                self.is_part(one, atom, depth + 1)
            }
            Kind::Join(number) => self.values.joins.get(*number).is_some_and(|join| {
                let is_part = |one: &Incoming| self.is_part(&one.value, atom, depth + 1);
                join.loop_atoms.is_none() && join.incoming.iter().all(is_part)
            }),
            _ => false,
        }
    }

    /// The bound of a loop's variable by another one that the loop's condition limits, or why there is none.
    fn by_sibling(
        &mut self,
        atom: u32,
        join: &Join,
        is_upper: bool,
        why: Reason,
    ) -> Result<Bound, Reason> {
        let Kind::Join(number) = self.values.get(atom).kind else { return Err(why) };
        let (first, back) = (join.incoming.first().ok_or(why)?.context, join.incoming.last());
        if let Some(value) = self.by_other_variable(atom, number, None) {
            let bound = self.bound(&value, is_upper, first);
            return if bound.doubt == Some(Reason::Loop) { Err(why) } else { Ok(bound) };
        }
        // A sum: each turn adds at most as much as any.
        let (Some((_, step)), Some(back)) = (sum(atom, join), back) else {
            return Err(why);
        };
        let most = self.bound(&step, is_upper, back.context);
        let doubt = most.doubt.unwrap_or(Reason::Instruction);
        if self.is_certain || is_unbounded(&doubt) || most.value.abs() > LARGEST_STEP {
            return Err(if is_unbounded(&doubt) { why } else { doubt });
        }
        let value = self.by_other_variable(atom, number, Some(Poly::constant(most.value)));
        let bound = self.bound(&value.ok_or(why)?, is_upper, first);
        match bound.doubt.filter(is_unbounded) {
            Some(why) => Err(why),
            None => Ok(Bound { doubt: Some(doubt), ..bound }),
        }
    }

    /// `poly` with a dividend and its quotient `atom` replaced by the remainder, if this lowers the greatest value.
    pub(super) fn as_rest(&mut self, poly: &Poly, atom: u32, context: u32) -> Option<Poly> {
        let Kind::Binary(Op::Quotient, number, divisor) = &self.values.get(atom).kind else {
            return None;
        };
        let (number, divisor) = (number.clone(), divisor.clone());
        let (product, own) = divisor.as_term()?;
        let (factor, _) = poly.split(atom);
        for sign in [-1, 1] {
            let mut multiple = Poly::default();
            for (term, coefficient) in factor.terms() {
                let is_rest = coefficient % own == 0 && coefficient / own * sign > 0;
                if let Some(rest) = without(term, product).filter(|_| is_rest) {
                    multiple = multiple.plus(&Poly::term(rest, -(coefficient / own)), 1)?;
                }
            }
            if multiple.len() == 0 {
                continue;
            }
            let rest = self.values.binary(Op::Remainder, &number, &divisor);
            // number = divisor * atom + rest
            let zero = divisor.times(&Poly::atom(atom))?.plus(&rest, 1)?.plus(&number, -1)?;
            let Some(next) = multiple.times(&zero).and_then(|next| poly.plus(&next, 1)) else {
                continue;
            };
            let is_plain = self.sizes.0.is_empty() && sign < 0;
            let (old, new) = (self.greatest(poly, context), self.greatest(&next, context));
            if is_plain || new < old || new == old && sign < 0 {
                return Some(next);
            }
        }
        None
    }

    /// `poly` with a minimum or maximum replaced by the operand that a fact decides for.
    pub(super) fn decided(&mut self, poly: &Poly, atom: u32, context: u32) -> Option<Poly> {
        let Kind::Binary(op @ (Op::Least | Op::Greatest), one, two) = &self.values.get(atom).kind
        else {
            return None;
        };
        let (is_least, pair) = (*op == Op::Least, [one.clone(), two.clone()]);
        let mut is_at_most = |less: &Poly, more: &Poly| {
            let gap = less.plus(more, -1).and_then(|gap| self.stated(&gap, context));
            gap.is_some_and(|gap| gap <= 0)
        };
        let [one, two] = &pair;
        let value = match () {
            () if is_at_most(one, two) => &pair[usize::from(!is_least)],
            () if is_at_most(two, one) => &pair[usize::from(is_least)],
            () => return None,
        };
        let (factor, rest) = poly.split(atom);
        factor.times(value)?.plus(&rest, 1)
    }

    /// `poly` with a loop's variable replaced by another one that the loop's condition limits.
    pub(super) fn by_counter(&mut self, poly: &Poly, atom: u32) -> Option<Poly> {
        let Kind::Join(number) = self.values.get(atom).kind else { return None };
        let value = self.by_other_variable(atom, number, None)?;
        let (factor, rest) = poly.split(atom);
        factor.times(&value)?.plus(&rest, 1)
    }

    /// The value of a loop's variable as a multiple of another one that the loop's condition limits. Each turn adds `step`,
    /// if it is given.
    fn by_other_variable(&self, atom: u32, number: usize, step: Option<Poly>) -> Option<Poly> {
        let join = self.values.joins.get(number)?;
        let (first, step) = match step {
            Some(step) => (sum(atom, join)?.0, step),
            None => linear(atom, join)?,
        };
        if self.is_limited(atom, join) {
            return None;
        }
        let oldest = join.loop_atoms?;
        for other in (oldest..).take(MOST_VARIABLES) {
            let Some(known) = self.values.atoms.get(index(other)) else { break };
            let Kind::Join(number) = known.kind else { continue };
            let Some(variable) = self.values.joins.get(number) else { continue };
            if other == atom
                || variable.loop_atoms != join.loop_atoms
                || !self.is_limited(other, variable)
            {
                continue;
            }
            let Some((other_first, other_step)) = linear(other, variable) else { continue };
            let ratio = match other_step.as_constant() {
                Some(1) => Some(step.clone()),
                Some(-1) => step.scaled(-1),
                _ => step.divided_exactly(&other_step),
            };
            if let Some(value) = ratio.and_then(|ratio| {
                let passed = Poly::atom(other).plus(&other_first, -1)?;
                ratio.times(&passed)?.plus(&first, 1)
            }) {
                return Some(value);
            }
        }
        None
    }

    /// Whether the condition at the end of the loop limits the variable.
    fn is_limited(&self, atom: u32, join: &Join) -> bool {
        join.incoming.iter().filter(|incoming| incoming.is_back).all(|incoming| {
            self.values.at(incoming.context).is_some_and(|own| {
                own.facts.iter().chain(&own.unequal).any(|fact| fact.atoms().any(|it| it == atom))
            })
        })
    }
}

/// The first value of a loop's variable and what a turn adds, if both are unique.
fn sum(atom: u32, join: &Join) -> Option<(Poly, Poly)> {
    let [first, back] = &join.incoming[..] else { return None };
    let step = back.value.plus(&Poly::atom(atom), -1)?;
    (!first.is_back && back.is_back).then(|| (first.value.clone(), step))
}

/// The same, if each turn adds as much.
fn linear(atom: u32, join: &Join) -> Option<(Poly, Poly)> {
    let oldest = join.loop_atoms?;
    sum(atom, join).filter(|(_, step)| step.atoms().all(|it| it < oldest))
}

/// Larger steps exceed any type after one turn.
const LARGEST_STEP: i128 = 1 << 40;
const MOST_PARTS: usize = 8;
/// The most variables of a loop that are tried.
const MOST_VARIABLES: usize = 64;
