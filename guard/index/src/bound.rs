//! The largest and smallest value of a polynomial in a launch.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::poly::{Poly, Product, without};
use super::sizes::{Reason, Sizes};
use super::trace::Taken;
use super::values::{Incoming, Kind, Op, Values};

/// The largest or the smallest value.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) value: i128,
    /// The bound as a formula of sizes.
    pub(super) formula: Poly,
    /// Why the value may not be reached.
    pub(super) doubt: Option<Reason>,
}

impl Bound {
    fn negated(self) -> Self {
        let formula = self.formula.scaled(-1).unwrap_or_default();
        Self { value: self.value.saturating_neg(), formula, doubt: self.doubt }
    }

    /// With a doubt whether control comes to where the value is from.
    pub(super) fn doubted(self, is_open: bool) -> Self {
        let doubt = if is_open { worse(self.doubt, Some(Reason::Instruction)) } else { self.doubt };
        Self { doubt, ..self }
    }

    pub(super) fn constant(value: i128) -> Self {
        Self { value, formula: Poly::constant(value), doubt: None }
    }
}

pub(super) struct Bounds<'v> {
    pub(super) values: &'v mut Values,
    pub(super) sizes: &'v Sizes,
    /// Whether a grid that is not given may be larger than a driver takes.
    pub(super) is_extended: bool,
    /// Treat unknown values as adversarially small, to get a bound that every launch reaches.
    pub(super) is_certain: bool,
    pub(super) known: HashMap<Key, Rc<Bound>>,
    facts: HashMap<u32, Rc<Vec<Poly>>>,
    reachable: HashMap<u32, bool>,
    /// The atoms whose bounds are being computed.
    pub(super) open: HashSet<(u32, bool)>,
    pub(super) depth: usize,
    /// The atoms in `depth`.
    pub(super) inner: usize,
    splits: usize,
    pub(super) steps: usize,
    /// The steps of earlier bounds.
    earlier_steps: usize,
    /// A bound up to this value needs no improvement.
    enough: i128,
}

/// An atom, whether the bound is the upper one, the context, and whether the bound is certain.
type Key = (u32, bool, u32, bool);

impl<'v> Bounds<'v> {
    pub(super) fn new(values: &'v mut Values, sizes: &'v Sizes) -> Self {
        Self {
            values,
            sizes,
            is_extended: false,
            is_certain: false,
            known: HashMap::new(),
            facts: HashMap::new(),
            reachable: HashMap::new(),
            open: HashSet::new(),
            depth: 0,
            inner: 0,
            splits: 0,
            steps: 0,
            earlier_steps: 0,
            enough: i128::MIN,
        }
    }

    /// The bound of `poly` that exceeds 32 bits, if one does. Unknown values count as small if `is_certain`.
    pub(super) fn exceeding(
        &mut self,
        poly: &Poly,
        taken_as: Taken,
        context: u32,
        is_certain: bool,
    ) -> Option<Bound> {
        self.earlier_steps += core::mem::take(&mut self.steps);
        self.is_certain = is_certain;
        let most = taken_as.most();
        if self.stated(poly, context).is_some_and(|stated| stated <= most) {
            return None;
        }
        self.enough = most;
        let high = self.upper(poly, context);
        if high.value > most {
            return self.is_reachable(context).then_some(high);
        }
        if self.values.range(poly).0 >= taken_as.least() {
            return None;
        }
        self.enough = most + 1;
        let low = self.lower(poly, context);
        (low.value < -most - 1 && self.is_reachable(context)).then_some(low)
    }

    /// Why `poly` may be negative, if it may.
    pub(super) fn negative(&mut self, poly: &Poly, context: u32) -> Option<Reason> {
        self.earlier_steps += core::mem::take(&mut self.steps);
        (self.is_certain, self.enough) = (false, 0);
        let stated = poly.scaled(-1).and_then(|negated| self.stated(&negated, context));
        if stated.is_some_and(|stated| stated <= 0) {
            return None;
        }
        let low = self.lower(poly, context);
        let why = low.doubt.unwrap_or(Reason::Instruction);
        ((low.value < 0 || is_unbounded(&why)) && self.is_reachable(context)).then_some(why)
    }

    /// Products that were examined so far.
    pub(super) fn work(&self) -> usize {
        self.earlier_steps + self.steps
    }

    /// Whether the facts of `context` can hold.
    fn is_reachable(&mut self, context: u32) -> bool {
        if let Some(known) = self.reachable.get(&context) {
            return *known;
        }
        let is_certain = core::mem::take(&mut self.is_certain);
        let (enough, inner) = (self.enough, self.inner);
        self.inner = 1;
        let facts = self.facts(context);
        let is_reachable = facts.iter().all(|fact| self.lower(fact, 0).value <= 0);
        (self.enough, self.inner, self.is_certain) = (enough, inner, is_certain);
        self.reachable.insert(context, is_reachable);
        is_reachable
    }

    /// The limit of `poly` that a fact states directly.
    pub(super) fn stated(&mut self, poly: &Poly, context: u32) -> Option<i128> {
        let facts = self.facts(context);
        facts.iter().filter_map(|fact| poly.plus(fact, -1)?.as_constant()).min()
    }

    fn facts(&mut self, context: u32) -> Rc<Vec<Poly>> {
        let values = &self.values;
        let facts = self.facts.entry(context).or_insert_with(|| Rc::new(values.facts(context)));
        Rc::clone(facts)
    }

    pub(super) fn lower(&mut self, poly: &Poly, context: u32) -> Bound {
        match poly.scaled(-1) {
            Some(negated) => self.upper(&negated, context).negated(),
            None => self.unknown(poly, Reason::TooComplex).negated(),
        }
    }

    /// The largest value of `poly` where the facts of `context` hold.
    pub(super) fn upper(&mut self, poly: &Poly, context: u32) -> Bound {
        if let Some(value) = poly.as_constant() {
            return Bound::constant(value);
        }
        if self.depth >= MOST_DEPTH || self.steps >= MOST_STEPS {
            return self.unknown(poly, Reason::TooComplex);
        }
        if !self.is_certain && self.is_of_memory(poly, context) {
            return self.unknown(poly, Reason::Loaded);
        }
        self.depth += 1;
        let bound = self.eliminate(poly, context);
        self.depth -= 1;
        bound
    }

    /// Whether a value from memory that no fact limits makes `poly` larger than any type. A multiple of a divisor may be
    /// a part of a remainder.
    fn is_of_memory(&mut self, poly: &Poly, context: u32) -> bool {
        let facts = self.facts(context);
        let has = |poly: &Poly, atom: u32| poly.atoms().any(|one| one == atom);
        poly.terms().any(|(product, factor)| {
            let is_free = |atom: &u32| {
                matches!(self.values.get(*atom).kind, Kind::Opaque(_, Reason::Loaded))
                    && !facts.iter().any(|fact| has(fact, *atom))
                    && !product.iter().any(|other| match &self.values.get(*other).kind {
                        Kind::Binary(Op::Quotient, _, by) => has(by, *atom),
                        _ => false,
                    })
            };
            let free = product.iter().filter(|atom| is_free(atom));
            let most =
                free.fold(factor, |most, atom| most.saturating_mul(self.values.get(*atom).high));
            factor > 0 && most > factor.saturating_mul(LARGEST)
        })
    }

    fn unknown(&self, poly: &Poly, why: Reason) -> Bound {
        let value = if self.is_certain { i128::MIN / 4 } else { self.values.range(poly).1 };
        Bound { doubt: Some(why), ..Bound::constant(value) }
    }

    /// Replaces each atom by its bound, the newest first, until only sizes are left.
    fn eliminate(&mut self, poly: &Poly, context: u32) -> Bound {
        let facts = self.facts(context);
        let mut current = poly.clone();
        let mut best = self.greatest(&current, context);
        let mut doubt = None;
        for _ in 0..MOST_ROUNDS {
            if self.inner == 0 && best <= self.enough {
                return Bound { doubt, ..Bound::constant(best) };
            }
            // Before the facts are used, which would separate a number from its quotient.
            let atoms: Vec<u32> = current.atoms().collect();
            let next = atoms.into_iter().find_map(|atom| self.as_rest(&current, atom, context));
            if let Some(next) = next {
                best = best.min(self.greatest(&next, context));
                current = next;
                continue;
            }
            let newest = current.atoms().filter(|atom| !self.values.get(*atom).is_size).max();
            // Also a minimum or maximum, from the condition that decides about it.
            let extreme = current.atoms().find(|atom| {
                let kind = &self.values.get(*atom).kind;
                matches!(kind, Kind::Binary(Op::Least | Op::Greatest, ..))
            });
            if let Some(next) = extreme.and_then(|atom| self.decided(&current, atom, context)) {
                best = best.min(self.greatest(&next, context));
                current = next;
                continue;
            }
            let cases = newest.filter(|_| extreme.is_some());
            let mut bound = cases.and_then(|atom| self.case_by_case(&current, atom, context));
            if bound.is_none() {
                if let Some((value, next)) = self.by_fact(&current, &facts, best, context) {
                    (best, current) = (value, next);
                    continue;
                }
                let Some(atom) = newest else {
                    return Bound { value: best, formula: current, doubt };
                };
                if let Some(next) = self.by_counter(&current, atom) {
                    best = best.min(self.greatest(&next, context));
                    current = next;
                    continue;
                }
                bound = self.case_by_case(&current, atom, context);
            }
            if let Some(bound) = bound {
                let value = best.min(bound.value);
                return Bound { value, doubt: worse(doubt, bound.doubt), ..bound };
            }
            let Some(atom) = newest else { break };
            let (factor, rest) = current.split(atom);
            let negated = factor.scaled(-1).unwrap_or_default();
            let high = self.greatest(&factor, context);
            let low = self.greatest(&negated, context).saturating_neg();
            if low < 0 && high > 0 && !self.is_certain {
                let Some(bound) = self.at_either_end(atom, &factor, &rest, context) else { break };
                let value = best.min(bound.value);
                return Bound { value, doubt: worse(doubt, bound.doubt), ..bound };
            }
            let mut is_upper = low >= 0 || high > low.saturating_neg();
            if !is_upper && self.is_part_of(atom, &rest) {
                // If the remainder is large, so is the quotient.
                doubt = worse(doubt, Some(Reason::Instruction));
                is_upper = self.is_certain;
            }
            let bound = self.atom(atom, is_upper, context);
            doubt = worse(doubt, bound.doubt);
            let next = factor.times(&bound.formula).and_then(|product| product.plus(&rest, 1));
            let Some(next) = next else { break };
            best = best.min(self.greatest(&next, context));
            current = next;
        }
        Bound {
            value: best,
            doubt: Some(Reason::TooComplex),
            ..self.unknown(poly, Reason::TooComplex)
        }
    }

    /// Whether `atom` is a quotient of values of `poly` that are not sizes.
    fn is_part_of(&self, atom: u32, poly: &Poly) -> bool {
        let mut seen = vec![atom];
        let mut next = 0;
        while let Some(Kind::Binary(Op::Quotient, number, _)) =
            seen.get(next).map(|one| &self.values.get(*one).kind)
        {
            for one in number.atoms().filter(|one| !self.values.get(*one).is_size) {
                if poly.atoms().any(|other| other == one) {
                    return true;
                }
                let is_quotient =
                    matches!(self.values.get(one).kind, Kind::Binary(Op::Quotient, ..));
                if is_quotient && seen.len() < MOST_QUOTIENTS && !seen.contains(&one) {
                    seen.push(one);
                }
            }
            next += 1;
        }
        false
    }

    /// The largest value of `poly`, if its atoms vary independently.
    pub(super) fn greatest(&mut self, poly: &Poly, context: u32) -> i128 {
        self.steps += 1 + poly.len();
        let mut terms: Vec<(Product, Product, i128)> = Vec::with_capacity(poly.len());
        for (product, coefficient) in poly.terms() {
            let (sizes, others): (Product, Product) =
                product.iter().copied().partition(|atom| self.values.get(*atom).is_size);
            terms.push((others, sizes, coefficient));
        }
        terms.sort_unstable();
        let mut sum = 0_i128;
        for group in terms.chunk_by(|one, two| one.0 == two.0) {
            let mut factor = (0_i128, 0_i128);
            for (_, sizes, coefficient) in group {
                let range = self.range((*coefficient, *coefficient), sizes, context);
                factor = (factor.0.saturating_add(range.0), factor.1.saturating_add(range.1));
            }
            if let Some((product, ..)) = group.first() {
                sum = sum.saturating_add(self.range(factor, product, context).1);
            }
        }
        sum
    }

    fn range(&mut self, mut range: (i128, i128), product: &[u32], context: u32) -> (i128, i128) {
        for atom in product {
            let low = self.atom(*atom, false, context).value;
            let high = self.atom(*atom, true, context).value;
            let ends = [
                range.0.saturating_mul(low),
                range.0.saturating_mul(high),
                range.1.saturating_mul(low),
                range.1.saturating_mul(high),
            ];
            range =
                ends.iter().fold((i128::MAX, i128::MIN), |(a, b), end| (a.min(*end), b.max(*end)));
        }
        range
    }

    /// Adds a multiple of a fact, if that lowers the greatest value.
    fn by_fact(
        &mut self,
        current: &Poly,
        facts: &[Poly],
        best: i128,
        context: u32,
    ) -> Option<(i128, Poly)> {
        let mut found: Option<(i128, Poly)> = None;
        for fact in facts {
            for (product, own) in fact.terms() {
                if product.is_empty() {
                    continue;
                }
                let mut factor = Poly::default();
                for (term, coefficient) in current.terms() {
                    let is_multiple = coefficient % own == 0 && coefficient / own > 0;
                    let Some(rest) = without(term, product).filter(|_| is_multiple) else {
                        continue;
                    };
                    if self.range((1, 1), &rest, context).0 >= 0 {
                        factor = factor.plus(&Poly::term(rest, coefficient / own), 1)?;
                    }
                }
                let next = (factor.len() > 0).then(|| factor.times(fact)).flatten();
                let Some(next) = next.and_then(|next| current.plus(&next, -1)) else { continue };
                let value = self.greatest(&next, context);
                if value < found.as_ref().map_or(best, |found| found.0) {
                    found = Some((value, next));
                }
            }
        }
        found
    }

    /// The bound, from one bound for each value of a join.
    fn case_by_case(&mut self, poly: &Poly, atom: u32, context: u32) -> Option<Bound> {
        let Kind::Join(number) = self.values.get(atom).kind else { return None };
        let join = self.values.joins.get(number)?;
        if join.loop_atoms.is_some()
            || self.splits >= MOST_SPLITS
            || join.incoming.len() > MOST_CASES
        {
            return None;
        }
        let incoming = join.incoming.clone();
        let (factor, rest) = poly.split(atom);
        let mut bounds = Vec::new();
        self.splits += 1;
        for Incoming { value, context: from, .. } in incoming {
            let value = factor.times(&value).and_then(|product| product.plus(&rest, 1));
            let both = self.values.both(context, from);
            let is_open = self.values.is_open(from);
            if !self.is_reachable(both) || is_open && self.is_certain {
                continue;
            }
            bounds.extend(value.map(|value| self.upper(&value, both).doubted(is_open)));
        }
        self.splits -= 1;
        greatest_of(bounds)
    }

    /// The bound of `factor * atom + rest`, if the factor may have either sign: it is reached at an end of the atom's range.
    fn at_either_end(
        &mut self,
        atom: u32,
        factor: &Poly,
        rest: &Poly,
        context: u32,
    ) -> Option<Bound> {
        if self.splits >= MOST_SPLITS {
            return None;
        }
        self.splits += 1;
        let bounds = [true, false].map(|is_upper| {
            let end = self.atom(atom, is_upper, context);
            let value = factor.times(&end.formula)?.plus(rest, 1)?;
            let bound = self.upper(&value, context);
            Some(Bound { doubt: worse(bound.doubt, end.doubt), ..bound })
        });
        self.splits -= 1;
        let [Some(one), Some(two)] = bounds else { return None };
        greatest_of(vec![one, two])
    }
}

/// The greatest bound, with the worst doubt of all bounds.
pub(super) fn greatest_of(bounds: Vec<Bound>) -> Option<Bound> {
    let doubt = bounds.iter().map(|bound| bound.doubt).reduce(worse)?;
    let greatest = bounds.into_iter().max_by_key(|bound| bound.value)?;
    Some(Bound { doubt, ..greatest })
}

/// The worse of two doubts: without a bound, of a value from memory, and others.
pub(super) fn worse(one: Option<Reason>, other: Option<Reason>) -> Option<Reason> {
    let rank = |why: &Reason| (is_unbounded(why), *why == Reason::Loaded);
    other.into_iter().chain(one).max_by_key(rank)
}

/// Whether this is the worst doubt: the bound is then none, whatever else is unknown.
pub(super) fn is_unbounded(why: &Reason) -> bool {
    matches!(why, Reason::Loop | Reason::TooComplex)
}

/// More than a value of 32 bits.
const LARGEST: i128 = 1 << 33;
pub(super) const MOST_DEPTH: usize = 40;
const MOST_ROUNDS: usize = 64;
/// The deepest nesting of quotients that is followed.
const MOST_QUOTIENTS: usize = 16;
const MOST_SPLITS: usize = 2;
const MOST_CASES: usize = 4;
/// The most products that are examined for one bound.
const MOST_STEPS: usize = 2_000;
