//! Wraps that depend only on the sizes of grid and block.

use super::bound::{Bound, Bounds};
use super::checks::Check;
use super::poly::Poly;
use super::sizes::{Size, Sizes};
use super::values::{Kind, MOST_BLOCKS, Values};
use super::verdict::{EntryIndex, all_sizes};

/// A sum of products of grid and block sizes, with the limit beyond which an index wraps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeLimit {
    /// The sum. It never falls as a size grows.
    pub terms: Vec<SizeTerm>,
    /// The largest value of the sum without a wrap.
    pub most: u64,
}

/// A factor times powers of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeTerm {
    /// The factor.
    pub factor: i64,
    /// The exponents of the grid's blocks along x, y and z.
    pub grid: [u8; 3],
    /// The exponents of the block's threads along x, y and z.
    pub block: [u8; 3],
}

impl EntryIndex {
    /// The limits on grid and block beyond which an index wraps, with the parameters in `sizes` and any values of the
    /// other parameters. Few entries have more than [`MOST_LIMITS`] limits; further ones are left out.
    ///
    /// ```
    /// let ptx = ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out) {\n\
    ///     ld.param.u64 %rd1, [out];\nmov.u32 %r1, %ctaid.y;\nshl.b32 %r2, %r1, 16;\n\
    ///     mul.wide.s32 %rd2, %r2, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\nret;\n}\n";
    /// let limits = gridguard_index::index(ptx.as_bytes())?.remove(0).limits(&Default::default());
    /// // gridDim.y * 65536 - 65536 <= 2147483647
    /// assert_eq!((limits[0].terms[1].factor, limits[0].terms[1].grid), (65536, [0, 1, 0]));
    /// assert_eq!((limits[0].terms[0].factor, limits[0].most), (-65536, 2147483647));
    /// # Ok::<(), gridguard_index::PtxError>(())
    /// ```
    pub fn limits(&mut self, sizes: &Sizes) -> Vec<SizeLimit> {
        self.limits_within(sizes, &mut { MOST_WORK })
    }

    /// As [`Self::limits`], with a budget of `work` units, from which the units spent are subtracted.
    pub fn limits_within(&mut self, sizes: &Sizes, work: &mut usize) -> Vec<SizeLimit> {
        let most = MOST_WORK.min(*work);
        let Self { checks, values, .. } = self;
        let is_parameter = |size: &Size| matches!(size, Size::Parameter { .. });
        let mut known = sizes.clone();
        known.0.retain(|size, _| is_parameter(size));
        let assumed = |value: Option<i64>, values: &Values| {
            let mut sizes = known.clone();
            for atom in &values.atoms {
                if let (Kind::Size(size, _), Some(value)) = (&atom.kind, value)
                    && is_parameter(size)
                {
                    sizes.0.entry(*size).or_insert(value.into());
                }
            }
            sizes
        };
        let mut done = Work { left: most };
        let mut found: Vec<(usize, SizeLimit)> = Vec::new();
        // A wrap with each of these parameter values does not hinge on a condition that a parameter decides.
        for value in [None, Some(0), Some(LARGE)] {
            let sizes = assumed(value, values);
            let mut bounds = Bounds::new(values, &sizes);
            bounds.is_extended = true;
            let mut limit = |number: usize| checks[number].limit(&mut bounds, &known, &mut done);
            match value {
                None => found.extend((0..checks.len()).filter_map(|one| Some((one, limit(one)?)))),
                Some(_) => found.retain(|(one, known)| limit(*one).as_ref() == Some(known)),
            }
        }
        let mut kept: Vec<SizeLimit> = Vec::new();
        for (number, limit) in found {
            if kept.len() < MOST_LIMITS
                && !kept.iter().any(|other| limit.is_implied_by(other))
                && checks[number].wraps_first_beyond(&limit, values, &known, &mut done)
            {
                kept.retain(|other| !other.is_implied_by(&limit));
                kept.push(limit);
            }
        }
        *work = work.saturating_sub(most - done.left);
        kept
    }
}

/// The remaining work of the analysis.
struct Work {
    left: usize,
}

impl Check {
    /// The limit on grid and block, if a value exceeds its type and depends only on these sizes.
    fn limit(&self, bounds: &mut Bounds<'_>, known: &Sizes, work: &mut Work) -> Option<SizeLimit> {
        let is_certain =
            self.is_index && self.doubt.is_none() && !bounds.values.is_open(self.context);
        let bound = if is_certain { work.exceeding(self, bounds)? } else { None }?;
        work.has_witness(self, bounds).then_some(())?;
        SizeLimit::of(&bound, self.taken_as.most(), bounds, known)
    }

    /// Checks in several launches that the value wraps exactly from the first grid that exceeds `limit`. The formula of
    /// the limit was found for the largest sizes; in other launches a condition may make the value smaller.
    fn wraps_first_beyond(
        &self,
        limit: &SizeLimit,
        values: &mut Values,
        known: &Sizes,
        work: &mut Work,
    ) -> bool {
        let axis = (0..3).find(|axis| limit.terms.iter().any(|term| term.grid[*axis] > 0));
        axis.is_some_and(|axis| {
            TRIED.into_iter().all(|(threads, others)| {
                let block = [0, 1, 2].map(|axis| {
                    let stated = values.block.get(axis).copied().flatten();
                    stated.map_or(if axis == 0 { threads } else { 1 }, |(_, high)| high)
                });
                let grid =
                    |blocks| core::array::from_fn(|one| if one == axis { blocks } else { others });
                let exceeds = |blocks| limit.value(grid(blocks), block) > i128::from(limit.most);
                let (mut fits, mut wraps) = (0, MOST_BLOCKS);
                while fits + 1 < wraps && exceeds(wraps) {
                    let middle = fits + (wraps - fits) / 2;
                    if exceeds(middle) { wraps = middle } else { fits = middle }
                }
                [fits, wraps].into_iter().filter(|blocks| *blocks > 0).all(|blocks| {
                    let mut sizes = known.clone();
                    for (one, (size, threads)) in grid(blocks).into_iter().zip(block).enumerate() {
                        sizes.0.insert(Size::Grid(one), size);
                        sizes.0.insert(Size::Block(one), threads);
                    }
                    let mut bounds = Bounds::new(values, &sizes);
                    let found = work.exceeding(self, &mut bounds);
                    found.is_some_and(|found| {
                        (found.is_some() && work.has_witness(self, &mut bounds)) == exceeds(blocks)
                    })
                })
            })
        })
    }
}

impl Work {
    fn has_witness(&mut self, check: &Check, bounds: &mut Bounds<'_>) -> bool {
        let before = bounds.steps;
        let has_witness = check.has_witness(bounds);
        self.left = self.left.saturating_sub(bounds.steps - before);
        has_witness
    }

    /// The bound that exceeds the type of `check`. `None` if that is not known.
    fn exceeding(&mut self, check: &Check, bounds: &mut Bounds<'_>) -> Option<Option<Bound>> {
        if self.left == 0 {
            return None;
        }
        let found = check.exceeding(bounds);
        self.left = self.left.saturating_sub(1 + bounds.steps);
        found.ok()
    }
}

impl SizeLimit {
    /// The limit that `bound` exceeds, if it is a sum of products of grid and block sizes that rises with them.
    fn of(bound: &Bound, most: i128, bounds: &mut Bounds<'_>, known: &Sizes) -> Option<Self> {
        let negated = bound.formula.scaled(-1)?;
        let (formula, most) =
            if bound.value < 0 { (&negated, most + 1) } else { (&bound.formula, most) };
        let mut terms: Vec<SizeTerm> = Vec::new();
        for (product, mut factor) in formula.terms() {
            let (mut grid, mut block) = ([0; 3], [0; 3]);
            for atom in product {
                let exponent = match bounds.values.get(*atom).kind {
                    Kind::Size(Size::Grid(axis), _) => grid.get_mut(axis)?,
                    Kind::Size(Size::Block(axis), _) => block.get_mut(axis)?,
                    _ => {
                        let atom = Poly::atom(*atom);
                        let sizes = all_sizes(bounds.values, &atom);
                        if !sizes.iter().all(|size| known.get(*size).is_some()) {
                            return None;
                        }
                        factor = factor.checked_mul(bounds.greatest(&atom, 0))?;
                        continue;
                    }
                };
                *exponent += 1;
            }
            let factor = i64::try_from(factor).ok()?;
            match terms.iter_mut().find(|term| (term.grid, term.block) == (grid, block)) {
                Some(term) => term.factor = term.factor.checked_add(factor)?,
                None => terms.push(SizeTerm { factor, grid, block }),
            }
        }
        // Each negative term is at most a part of a positive one, because sizes are at least 1.
        let mut positive: Vec<&SizeTerm> = terms.iter().filter(|term| term.factor > 0).collect();
        let rises =
            terms.iter().filter(|term| term.factor < 0 && !term.is_constant()).all(|term| {
                let covers =
                    |other: &&SizeTerm| other.is_multiple_of(term) && other.factor >= -term.factor;
                positive.iter().position(covers).map(|place| positive.swap_remove(place)).is_some()
            });
        let limit = Self { terms, most: u64::try_from(most).ok()? };
        let has_grid = limit.terms.iter().any(|term| term.grid != [0; 3]);
        (rises && has_grid).then_some(limit)
    }

    fn value(&self, grid: [i128; 3], block: [i128; 3]) -> i128 {
        self.terms.iter().fold(0, |sum, term| {
            let sizes = grid.into_iter().zip(term.grid).chain(block.into_iter().zip(term.block));
            let product = sizes.fold(i128::from(term.factor), |product, (size, exponent)| {
                product.saturating_mul(size.saturating_pow(exponent.into()))
            });
            sum.saturating_add(product)
        })
    }

    /// Whether `other` is exceeded whenever `self` is. This holds if some multiple of `self` is at most `other` in each
    /// term, and the same multiple of its limit reaches the limit of `other`.
    fn is_implied_by(&self, other: &Self) -> bool {
        let factor = |of: &Self, term: &SizeTerm| {
            let is_same = |one: &&SizeTerm| (one.grid, one.block) == (term.grid, term.block);
            of.terms.iter().find(is_same).map_or(0, |one| i128::from(one.factor))
        };
        let times = self.terms.iter().filter(|term| term.factor > 0);
        let times = times.map(|term| factor(other, term) / i128::from(term.factor)).min();
        let Some(times) = times.filter(|times| *times > 0) else { return false };
        let mut terms = self.terms.iter().chain(&other.terms);
        times * i128::from(self.most) >= i128::from(other.most)
            && terms.all(|term| times * factor(self, term) <= factor(other, term))
    }
}

impl SizeTerm {
    fn is_constant(&self) -> bool {
        self.grid == [0; 3] && self.block == [0; 3]
    }

    fn is_multiple_of(&self, other: &Self) -> bool {
        let own = self.grid.iter().chain(&self.block);
        own.zip(other.grid.iter().chain(&other.block)).all(|(one, other)| one >= other)
    }
}

/// The limits of an entry that are kept.
pub const MOST_LIMITS: usize = 8;
/// The most products that are examined for one entry. An entry that needs more has only the limits that were found
/// until then.
const MOST_WORK: usize = 40_000;
/// A parameter value that no condition takes for small.
const LARGE: i64 = 1 << 30;
/// The threads of a block, and the blocks along the other axes, with which a limit is tried.
const TRIED: [(i128, i128); 3] = [(32, 1), (128, 7), (1024, 1)];
