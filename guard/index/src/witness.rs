//! A thread of a launch whose index wraps: the proof that the bound of a value is reached.

use super::bound::Bounds;
use super::checks::Check;
use super::condition::{Compare, Condition};
use super::poly::Poly;
use super::sizes::Size;
use super::values::{Context, Kind, LANE, Op, Origin, Values};

/// A thread, and what its values turned out to be.
struct Thread<'b, 'v> {
    bounds: &'b Bounds<'v>,
    block: [i128; 3],
    thread: [i128; 3],
    /// A value depends on data, or on later turns of a loop.
    is_free: bool,
    /// A value changes in a loop. Its first one is taken.
    is_in_loop: bool,
    /// A value of the launch is not followed.
    is_lost: bool,
    /// A condition on later turns of a loop was taken to hold, though it does not in the first turn.
    is_assumed: bool,
    steps: usize,
}

impl Check {
    /// Whether a thread that was tried computes a value beyond the type, or one that changes in a loop or depends on data.
    pub(super) fn has_witness(&self, bounds: &mut Bounds<'_>) -> bool {
        let size = |size| bounds.largest(size);
        let [mut grid, block] =
            [Size::Grid, Size::Block].map(|of| [0, 1, 2].map(|axis| (size(of(axis)) - 1).max(0)));
        // Along other axes, all blocks do the same.
        for (axis, last) in grid.iter_mut().enumerate() {
            let is_read = bounds.values.known(&Kind::BlockIndex(axis)).is_some();
            *last = if is_read { *last } else { 0 };
        }
        let is_other =
            |corner: &usize| (0..3).all(|axis| grid[axis] > 0 || corner >> axis & 1 == 0);
        let mut steps = 0;
        let mut reaches = |place: [i128; 3], thread: [i128; 3]| {
            let mut one = Thread::new(bounds, place, thread);
            let value = one.poly(&self.value, 0);
            let is_lost = core::mem::take(&mut one.is_lost);
            let has_free = one.is_free || one.is_in_loop;
            let exceeds =
                value.is_some_and(|it| it > self.taken_as.most() || it < self.taken_as.least());
            one.is_assumed = false;
            let comes = one.holds(self.context);
            let holds = comes && !one.is_lost && (has_free || !one.is_assumed);
            let is_free = has_free && !is_lost && holds;
            let decides = !exceeds
                || has_free
                || self.compare.as_ref().is_none_or(|compare| one.flips(compare, self));
            steps += one.steps;
            (exceeds || is_free, holds && decides)
        };
        // The last thread of a block that comes here.
        let at_end = |reaches: &mut dyn FnMut([i128; 3], [i128; 3]) -> (bool, bool),
                      place,
                      thread: [i128; 3]| {
            let at = |x| [x, thread[1], thread[2]];
            let beyond = first(block[0] + 1, |x| !reaches(place, at(x)).1);
            reaches(place, at((beyond - 1).max(0))) == (true, true)
        };
        let of_x = [block[0], 0, block[0] / 2, block[0].min(31), block[0].min(1)];
        let threads = of_x.map(|x| if x == block[0] { block } else { [x, 0, 0] });
        let found = threads.into_iter().any(|thread| {
            (0..8).filter(is_other).any(|corner| {
                let place =
                    [0, 1, 2].map(|axis| if corner >> axis & 1 == 0 { grid[axis] } else { 0 });
                reaches(place, thread) == (true, true)
                    || at_end(&mut reaches, place, thread)
                    || (0..3).filter(|axis| place[*axis] > 0).any(|axis| {
                        let at = |block| {
                            core::array::from_fn(|one| if one == axis { block } else { place[one] })
                        };
                        // The first block that exceeds, and the last block that comes here.
                        let exceeds = first(grid[axis], |block| reaches(at(block), thread).0);
                        let beyond = first(grid[axis] + 1, |block| !reaches(at(block), thread).1);
                        let holds = (beyond - 1).max(0);
                        let last = (0..NEAR).map(|back| (grid[axis] - back).max(0));
                        let mut tried = [exceeds, holds].into_iter().chain(last);
                        at_end(&mut reaches, at(holds), thread)
                            || tried.any(|block| reaches(at(block), thread) == (true, true))
                    })
            })
        });
        bounds.steps += steps / STEPS_OF_A_PRODUCT;
        found
    }
}

impl<'b, 'v> Thread<'b, 'v> {
    fn new(bounds: &'b Bounds<'v>, block: [i128; 3], thread: [i128; 3]) -> Self {
        Self {
            bounds,
            block,
            thread,
            is_free: false,
            is_in_loop: false,
            is_lost: false,
            is_assumed: false,
            steps: 0,
        }
    }

    fn poly(&mut self, poly: &Poly, depth: usize) -> Option<i128> {
        poly.terms().try_fold(0_i128, |sum, (product, factor)| {
            self.steps += 1;
            let value = product
                .iter()
                .try_fold(factor, |value, atom| value.checked_mul(self.atom(*atom, depth)?));
            sum.checked_add(value?)
        })
    }

    fn atom(&mut self, atom: u32, depth: usize) -> Option<i128> {
        let values: &Values = self.bounds.values;
        let known = values.get(atom);
        if depth > MOST_DEPTH || self.steps > MOST_STEPS {
            self.is_lost = true;
            return None;
        }
        match &known.kind {
            Kind::Size(size, _) => Some(match self.bounds.sizes.get(*size) {
                Some(given) => given.min(known.high),
                None => self.bounds.size(atom, *size).1.min(i128::from(u32::MAX)),
            }),
            Kind::ThreadIndex(axis) => Some(self.thread[*axis]),
            Kind::BlockIndex(axis) => Some(self.block[*axis]),
            Kind::Binary(op, one, two) => {
                let (one, two) = (self.poly(one, depth + 1)?, self.poly(two, depth + 1)?);
                // The quotient of a negative number depends on the type.
                let is_quotient = matches!(op, Op::Quotient | Op::Remainder);
                self.is_lost |= is_quotient && (one < 0 || two < 0);
                match op {
                    Op::Quotient => one.checked_div_euclid(two),
                    Op::Remainder => one.checked_rem_euclid(two),
                    Op::Least => Some(one.min(two)),
                    Op::Greatest => Some(one.max(two)),
                    Op::Or => Some(one | two),
                    Op::Xor => Some(one ^ two),
                    Op::And => Some(one & two),
                }
            }
            Kind::UpTo(LANE, _) => Some(self.thread[0] & 31),
            Kind::Join(number) => {
                let join = values.joins.get(*number)?;
                self.is_in_loop |= join.loop_atoms.is_some();
                let mut incoming = join.incoming.iter().filter(|incoming| !incoming.is_back);
                let incoming = incoming.find(|incoming| self.holds(incoming.context))?;
                self.poly(&incoming.value, depth + 1)
            }
            Kind::UpTo(..) | Kind::Opaque(..) => {
                match known.origin {
                    Origin::Data => self.is_free = true,
                    _ => self.is_lost = true,
                }
                None
            }
        }
    }

    /// Whether the thread comes to `context`, if conditions of loops and of data hold.
    fn holds(&mut self, context: u32) -> bool {
        let mut next = Some(context);
        while let Some(id) = next {
            let values: &Values = self.bounds.values;
            let Some(Context { parent, facts, unequal, unfollowed, .. }) = values.at(id) else {
                break;
            };
            let known = (self.is_free, self.is_in_loop);
            let is_so = |one: &mut Self, it: Option<bool>| {
                // Later turns may differ from the first one.
                let may_differ = one.is_free || one.is_in_loop;
                (one.is_free, one.is_in_loop) = (false, false);
                one.is_assumed |= it == Some(false) && may_differ;
                it.unwrap_or(true) || may_differ
            };
            let holds = facts.iter().all(|fact| {
                let value = self.poly(fact, 1).map(|value| value <= 0);
                is_so(self, value)
            }) && unequal.iter().all(|one| {
                let value = self.poly(one, 1).map(|value| value != 0);
                is_so(self, value)
            }) && unfollowed.iter().all(|(node, truth)| {
                let value = self.test(*node, 0).map(|value| value == *truth);
                is_so(self, value)
            });
            (self.is_free, self.is_in_loop) = known;
            if !holds {
                return false;
            }
            next = *parent;
        }
        true
    }

    /// Whether the comparison of a value that exceeds its type has another result than that of its exact value.
    fn flips(&mut self, compare: &Compare, check: &Check) -> bool {
        let cut = |it: i128| {
            let (least, all) =
                (check.taken_as.least().max(-check.taken_as.most() - 1), 1 << check.taken_as.bits);
            if check.taken_as.is_signed {
                (it - least).rem_euclid(all) + least
            } else {
                it.rem_euclid(all)
            }
        };
        let (Some(one), Some(two)) = (self.poly(&compare.left, 1), self.poly(&compare.right, 1))
        else {
            return true;
        };
        compare.holds(one, two) != compare.holds(cut(one), cut(two))
    }

    /// Whether a predicate holds.
    fn test(&mut self, node: usize, depth: usize) -> Option<bool> {
        let values: &Values = self.bounds.values;
        let Some(condition) = values.conditions.get(&node).filter(|_| depth < MOST_TESTS) else {
            self.is_lost = true;
            return None;
        };
        match condition {
            Condition::Compare(compare) => {
                Some(compare.holds(self.poly(&compare.left, 1)?, self.poly(&compare.right, 1)?))
            }
            Condition::Not(one) => self.test(*one, depth + 1).map(|it| !it),
            Condition::Both(one, two) | Condition::AnyOf(one, two) => {
                let decides = matches!(condition, Condition::AnyOf(..));
                match [one, two].map(|node| self.test(*node, depth + 1)) {
                    [Some(one), _] | [_, Some(one)] if one == decides => Some(decides),
                    [one, two] => one.and(two),
                }
            }
            Condition::Unknown(is_data) => {
                self.is_lost |= !is_data;
                None
            }
        }
    }
}

/// The first number up to `most` for which `is_so` holds, if it holds for all larger ones.
fn first(most: i128, mut is_so: impl FnMut(i128) -> bool) -> i128 {
    let (mut low, mut high) = (-1, most);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if is_so(middle) { high = middle } else { low = middle }
    }
    high
}

/// The last blocks that are tried.
const NEAR: i128 = 4;
const MOST_DEPTH: usize = 40;
/// Conditions that are nested more deeply are not followed.
const MOST_TESTS: usize = 6;
/// The most products for one thread.
const MOST_STEPS: usize = 2_000;
/// An evaluation is simpler than the bound of a product.
const STEPS_OF_A_PRODUCT: usize = 16;
