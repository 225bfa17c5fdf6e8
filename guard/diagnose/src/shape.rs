//! Shapes of tensors that a log states, and causes of a refused launch that they suggest.

use core::fmt;

use super::failure::{Cause, Hint};

/// Blocks that y and z of a grid hold.
pub(super) const AXIS_BLOCKS: u64 = 65_535;
pub(super) const MAX_THREADS: u64 = 1024;

/// The shape of a tensor, or the size of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    sizes: [u64; Self::AXES],
    count: usize,
    is_batch: bool,
}

impl Shape {
    /// Axes that are kept.
    pub(super) const AXES: usize = 6;

    /// A shape of at most [`Self::AXES`] sizes, if a launch may be refused for it.
    pub(super) fn new(sizes: &[u64]) -> Option<Self> {
        let mut all = [1; Self::AXES];
        all.get_mut(..sizes.len())?.copy_from_slice(sizes);
        let shape = Self { sizes: all, count: sizes.len(), is_batch: false };
        shape.is_notable().then_some(shape)
    }

    pub(super) fn of_batch(size: u64) -> Option<Self> {
        Self::new(&[size, 1]).map(|shape| Self { is_batch: true, ..shape })
    }

    fn sizes(&self) -> &[u64] {
        self.sizes.get(..self.count).unwrap_or_default()
    }

    fn elements(&self) -> u64 {
        self.sizes().iter().fold(1, |all, size| all.saturating_mul(*size))
    }

    /// The blocks of the largest number of threads that hold an element each.
    fn blocks(&self) -> u64 {
        self.elements().div_ceil(MAX_THREADS)
    }

    /// The first axis, if it is longer than an axis of the grid. A vector is split into blocks.
    fn long_axis(&self) -> Option<u64> {
        let first = *self.sizes().first()?;
        (self.count > 1 && first > AXIS_BLOCKS).then_some(first)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count > 0 && self.elements() == 0
    }

    fn is_notable(&self) -> bool {
        self.is_empty() || self.long_axis().is_some() || self.blocks() > AXIS_BLOCKS
    }

    /// Why a launch on such a tensor may be refused, and the remedy.
    pub(super) fn cause(&self) -> Cause {
        let why = format!("the log has {self}");
        if self.is_empty() {
            let what = "the grid is empty, because the batch or a tensor is";
            return Cause::stated(Hint::EmptyBatch, what, why, SKIP);
        }
        let (what, remedy) = if let Some(axis) = self.long_axis() {
            let (parts, each) = parts(axis);
            let what = format!(
                "the batch or first axis of {axis} may be on grid.y or grid.z, which end at \
                 {AXIS_BLOCKS} blocks"
            );
            let remedy = format!(
                "process it in {parts} parts of at most {each}, or put this axis on grid.x"
            );
            (what, remedy)
        } else {
            let (elements, blocks) = (self.elements(), self.blocks());
            let what = format!(
                "the blocks for {elements} elements may be on grid.y or grid.z, which end at \
                 {AXIS_BLOCKS}: even blocks of {MAX_THREADS} threads are {blocks}"
            );
            let (parts, _) = parts(blocks);
            let remedy = format!(
                "process it in {parts} or more parts, or update the library: newer versions may \
                 put these blocks on grid.x"
            );
            (what, remedy)
        };
        Cause::stated(Hint::LargeShape, what, why, remedy)
    }
}

/// How to split `blocks` so that each part fits an axis.
pub(super) fn parts(blocks: u64) -> (u64, u64) {
    let parts = blocks.div_ceil(AXIS_BLOCKS).max(1);
    (parts, blocks.div_ceil(parts))
}

const SKIP: &str = "skip the launch if there are no elements, or do not pass an empty tensor";

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_batch {
            return write!(f, "a batch of {}", self.sizes[0]);
        }
        let sizes: Vec<String> = self.sizes().iter().map(u64::to_string).collect();
        write!(f, "the shape ({})", sizes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shapes_that_may_refuse_a_launch_are_notable() {
        let cause = |sizes: &[u64]| Shape::new(sizes).map(|shape| shape.cause());
        let what = |sizes: &[u64]| cause(sizes).map(|it| it.what).unwrap_or_default();
        assert!(what(&[100_000, 8, 8]).contains("of 100000 may be on grid.y"));
        assert!(what(&[8192, 16_384]).contains("134217728 elements"));
        assert!(what(&[0, 1]).contains("empty") && what(&[0]).contains("empty"));
        for sizes in [&[65_535, 8][..], &[100_000], &[2, 8, 4096, 64], &[]] {
            assert_eq!(cause(sizes), None, "{sizes:?}");
        }
        assert_eq!(Shape::new(&[0; Shape::AXES + 1]), None);
        let huge = Shape::new(&[u64::MAX, u64::MAX]).map(|it| it.cause().remedy);
        assert_eq!(parts(131_072), (3, 43_691));
        assert!(huge.is_some_and(|it| it.starts_with("process it in ")));
    }
}
