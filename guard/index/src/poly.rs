//! Polynomials with exact integer coefficients over atoms.

use arrayvec::ArrayVec;

/// A product of atoms by their ids, sorted. Empty for the constant term.
pub(super) type Product = ArrayVec<u32, MOST_FACTORS>;

/// A sum of products, sorted, without zero coefficients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Poly(Vec<(Product, i128)>);

impl Poly {
    pub(super) fn constant(value: i128) -> Self {
        Self::term(Product::new(), value)
    }

    pub(super) fn atom(id: u32) -> Self {
        Self::term(core::iter::once(id).collect(), 1)
    }

    pub(super) fn term(product: Product, coefficient: i128) -> Self {
        Self(if coefficient == 0 { Vec::new() } else { vec![(product, coefficient)] })
    }

    pub(super) fn terms(&self) -> impl DoubleEndedIterator<Item = (&[u32], i128)> {
        self.0.iter().map(|(product, coefficient)| (&product[..], *coefficient))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn as_constant(&self) -> Option<i128> {
        match &self.0[..] {
            [] => Some(0),
            [(product, value)] if product.is_empty() => Some(*value),
            _ => None,
        }
    }

    pub(super) fn as_term(&self) -> Option<(&[u32], i128)> {
        match &self.0[..] {
            [(product, value)] => Some((product, *value)),
            _ => None,
        }
    }

    /// The atom, if the polynomial is a single atom.
    pub(super) fn as_atom(&self) -> Option<u32> {
        match self.as_term()? {
            ([atom], 1) => Some(*atom),
            _ => None,
        }
    }

    pub(super) fn atoms(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(product, _)| product.iter().copied())
    }

    /// `self + factor * other`. `None` if it is too large.
    pub(super) fn plus(&self, other: &Self, factor: i128) -> Option<Self> {
        let mut sum = Vec::with_capacity(self.len() + other.len());
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => core::cmp::Ordering::Less,
                (None, Some(_)) => core::cmp::Ordering::Greater,
                (Some(one), Some(two)) => one.0.cmp(&two.0),
            };
            let one = if order.is_le() { left.next() } else { None };
            let two = if order.is_ge() { right.next() } else { None };
            let mut coefficient = one.map_or(0, |term| term.1);
            if let Some(term) = two {
                coefficient = coefficient.checked_add(factor.checked_mul(term.1)?)?;
            }
            let product = one.or(two).map(|term| term.0.clone()).unwrap_or_default();
            if coefficient != 0 {
                sum.push((product, coefficient));
            }
        }
        (sum.len() <= MOST_TERMS && sum.iter().all(|term| term.1.unsigned_abs() <= LARGEST))
            .then_some(Self(sum))
    }

    pub(super) fn times(&self, other: &Self) -> Option<Self> {
        if self.len().checked_mul(other.len())? > MOST_TERMS {
            return None;
        }
        let mut sum = Self::default();
        for (product, coefficient) in self.terms() {
            let mut scaled = Vec::with_capacity(other.len());
            for (factor, other) in other.terms() {
                if product.len() + factor.len() > MOST_FACTORS {
                    return None;
                }
                let mut both: Product = product.iter().chain(factor).copied().collect();
                both.sort_unstable();
                scaled.push((both, coefficient.checked_mul(other)?));
            }
            scaled.sort_unstable();
            sum = sum.plus(&Self(scaled), 1)?;
        }
        Some(sum)
    }

    pub(super) fn scaled(&self, factor: i128) -> Option<Self> {
        Self::default().plus(self, factor)
    }

    /// `(a, b)` with `self = a * atom + b`, where `b` does not contain the atom.
    pub(super) fn split(&self, atom: u32) -> (Self, Self) {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for (product, coefficient) in &self.0 {
            match product.iter().position(|id| *id == atom) {
                Some(at) => {
                    let mut rest = product.clone();
                    rest.remove(at);
                    with.push((rest, *coefficient));
                }
                None => without.push((product.clone(), *coefficient)),
            }
        }
        with.sort_unstable();
        (Self(with), Self(without))
    }

    /// `(q, r)` with `self = term * q + r`, where no product of `r` is divisible by the term.
    pub(super) fn divided_by_term(&self, product: &[u32], divisor: i128) -> (Self, Self) {
        let (mut quotient, mut rest) = (Vec::new(), Vec::new());
        for (own, coefficient) in &self.0 {
            match without(own, product) {
                Some(left) if divisor != 0 && coefficient % divisor == 0 => {
                    quotient.push((left, coefficient / divisor));
                }
                _ => rest.push((own.clone(), *coefficient)),
            }
        }
        quotient.sort_unstable();
        (Self(quotient), Self(rest))
    }

    /// `q` with `self = divisor * q`, if `q` is one term.
    pub(super) fn divided_exactly(&self, divisor: &Self) -> Option<Self> {
        let ((own, value), (product, by)) =
            (self.terms().next_back()?, divisor.terms().next_back()?);
        if value % by != 0 {
            return None;
        }
        let quotient = Self::term(without(own, product)?, value / by);
        (divisor.times(&quotient)? == *self).then_some(quotient)
    }

    /// The greatest common divisor of the coefficients.
    pub(super) fn content(&self) -> u128 {
        self.0.iter().fold(0, |all, term| greatest_common_divisor(all, term.1.unsigned_abs()))
    }
}

/// `product` without the factors of `divisor`, if it has them all.
pub(super) fn without(product: &[u32], divisor: &[u32]) -> Option<Product> {
    let mut rest = product.iter().copied().collect::<Product>();
    for factor in divisor {
        rest.remove(rest.iter().position(|id| id == factor)?);
    }
    Some(rest)
}

fn greatest_common_divisor(mut one: u128, mut two: u128) -> u128 {
    while two != 0 {
        (one, two) = (two, one % two);
    }
    one
}

/// Larger sums become one atom.
const MOST_TERMS: usize = 64;
const MOST_FACTORS: usize = 8;
/// Far above 64-bit values times 32-bit values, and far below the limits of `i128`.
const LARGEST: u128 = 1 << 100;
