//! Bounds of loop variables, and equal values.

use super::bound::{Bound, Bounds, greatest_of};
use super::poly::{Poly, without};
use super::sizes::Reason;
use super::values::{Join, Kind, Op};

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
        let step = self.linear(atom, join).map(|(_, step)| step);
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
            if let Some(why) =
                bound.doubt.filter(|why| *why == Reason::Loop || *why == Reason::TooComplex)
            {
                return match self.by_sibling(atom, join, is_upper) {
                    Some(bound) => Ok(vec![bound]),
                    None => Err(why),
                };
            }
            bounds.push(bound);
        }
        Ok(bounds)
    }

    fn by_sibling(&mut self, atom: u32, join: &Join, is_upper: bool) -> Option<Bound> {
        let Kind::Join(number) = self.values.get(atom).kind else { return None };
        let value = self.by_other_variable(atom, number)?;
        let context = join.incoming.first()?.context;
        let bound = self.bound(&value, is_upper, context);
        (bound.doubt != Some(Reason::Loop)).then_some(bound)
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

    /// `poly` with a loop's variable replaced by another one that the loop's condition limits.
    pub(super) fn by_counter(&mut self, poly: &Poly, atom: u32) -> Option<Poly> {
        let Kind::Join(number) = self.values.get(atom).kind else { return None };
        let value = self.by_other_variable(atom, number)?;
        let (factor, rest) = poly.split(atom);
        factor.times(&value)?.plus(&rest, 1)
    }

    /// The value of a loop's variable as a multiple of another one that the loop's condition limits.
    fn by_other_variable(&self, atom: u32, number: usize) -> Option<Poly> {
        let join = self.values.joins.get(number)?;
        let (first, step) = self.linear(atom, join)?;
        if self.is_limited(atom, join) {
            return None;
        }
        let oldest = join.loop_atoms?;
        for other in (oldest..).take(MOST_VARIABLES) {
            let Some(known) = usize::try_from(other).ok().and_then(|id| self.values.atoms.get(id))
            else {
                break;
            };
            let Kind::Join(number) = known.kind else { continue };
            let Some(variable) = self.values.joins.get(number) else { continue };
            if other == atom
                || variable.loop_atoms != join.loop_atoms
                || !self.is_limited(other, variable)
            {
                continue;
            }
            let Some((other_first, other_step)) = self.linear(other, variable) else { continue };
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
            let own =
                usize::try_from(incoming.context).ok().and_then(|id| self.values.contexts.get(id));
            own.is_some_and(|own| {
                own.facts.iter().chain(&own.unequal).any(|fact| fact.atoms().any(|it| it == atom))
            })
        })
    }

    /// The first value of a loop's variable and its step, if both are unique.
    fn linear(&self, atom: u32, join: &Join) -> Option<(Poly, Poly)> {
        let [first, back] = &join.incoming[..] else { return None };
        let step = back.value.plus(&Poly::atom(atom), -1)?;
        let oldest = join.loop_atoms?;
        let is_fixed = !first.is_back && back.is_back && step.atoms().all(|it| it < oldest);
        is_fixed.then(|| (first.value.clone(), step))
    }
}

/// The most variables of a loop that are tried.
const MOST_VARIABLES: usize = 64;
