//! Grids whose blocks each work on consecutive items.

use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest};

use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::{VECTOR_BYTES, check_elements, check_size};

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

/// The longest row that is tested; no model has longer ones.
pub(crate) const MAX_COLUMNS: u64 = 1 << 20;

/// Contiguous rows of equal length, as items of a grid: on y, with several rows a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rows {
    pub(crate) count: u64,
    pub(crate) columns: u64,
    pub(crate) element: ElementType,
}

impl Rows {
    /// The names of the sizes in profiles.
    pub(crate) const SIZES: &'static [&'static str] = &["rows", "columns"];

    /// `count` rows of 1 to `max_columns` columns.
    pub(crate) fn new(
        count: u64,
        columns: u64,
        element: ElementType,
        max_columns: u64,
    ) -> Result<Self, KernelError> {
        check_size("columns", columns, 1..=max_columns)?;
        check_elements(&[count, columns])?;
        Ok(Self { count, columns, element })
    }

    /// The sizes and the type, for profiles.
    pub(crate) fn problem(self) -> (Vec<u64>, String) {
        (self.dims().into(), self.element.to_string())
    }

    /// `[rows, columns]`.
    pub(crate) const fn dims(self) -> [u64; 2] {
        [self.count, self.columns]
    }

    /// Whether every row is a multiple of 16 bytes long.
    pub(crate) const fn are_whole_vectors(self) -> bool {
        (self.columns * self.element.bytes()).is_multiple_of(VECTOR_BYTES)
    }

    /// Vectors of a row, or elements if rows are not whole vectors.
    pub(crate) const fn parts(self) -> u64 {
        let vectors = self.columns * self.element.bytes() / VECTOR_BYTES;
        if self.are_whole_vectors() { vectors } else { self.columns }
    }

    /// The launch over all rows, with `rows_per_block` rows a block.
    pub(crate) fn grid(self, rows_per_block: u64, threads: u64) -> (LaunchRequest, BatchAxis) {
        Blocks { axis: Axis::Y, items: rows_per_block, tiles: 1, threads }.grid(self.count)
    }
}
