//! Grids whose blocks each work on consecutive items.

use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest};

/// How blocks share the items of a grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// The grid axis of the items: y or z.
    pub(crate) axis: Axis,
    /// Consecutive items of a block.
    pub(crate) items: u64,
    /// Blocks on x that share them.
    pub(crate) tiles: u64,
    /// Threads of a block.
    pub(crate) threads: u64,
}

impl Blocks {
    /// The launch over `items` items, and its batch axis.
    pub(crate) fn grid(self, items: u64) -> (LaunchRequest, BatchAxis) {
        let grid = Dim3::new(self.tiles, 1, 1).with(self.axis, items.div_ceil(self.items));
        let request = LaunchRequest::new(grid, Dim3::new(self.threads, 1, 1));
        (request, BatchAxis::new(self.axis, items).items_per_block(self.items).foldable())
    }
}
