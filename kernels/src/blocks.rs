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

/// Threads of a block of a [`Span`].
pub(crate) const THREADS: u64 = 256;
/// The most vectors that a thread loads before its first store: enough bytes in flight to hide the
/// latency of memory.
const MAX_STEPS: u64 = 4;

/// How blocks share an output that is written as one span of memory, in vectors of 16 bytes. Items are on grid z, and
/// each group of `tiles` blocks writes `items` consecutive items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Items of a group: more than one if they fit into a block.
    pub(crate) items: u64,
    /// Blocks of a group: more than one if an item does not fit into a block.
    pub(crate) tiles: u64,
    /// Vectors that a thread writes.
    pub(crate) steps: u64,
}

impl Span {
    /// For items of `elements` elements, 1 to 2^62 - 1; `aligned` if every group of items begins at
    /// a multiple of 16 bytes.
    pub(crate) fn new(elements: u64, element: ElementType, aligned: bool) -> Self {
        let width = vector_elements(element);
        // A span that begins elsewhere begins with a partial vector.
        let partial = if aligned { 0 } else { width - 1 };
        let block = THREADS * MAX_STEPS;
        let items = ((block * width - partial) / elements.max(1)).max(1);
        let vectors = (items * elements + partial).div_ceil(width).max(1);
        let tiles = vectors.div_ceil(block);
        Self { items, tiles, steps: vectors.div_ceil(tiles * THREADS) }
    }

    /// The launch over `items` items on grid z, and its batch axis.
    pub(crate) fn grid(&self, items: u64) -> (LaunchRequest, BatchAxis) {
        let Self { items: group, tiles, .. } = *self;
        Blocks { axis: Axis::Z, items: group, tiles, threads: THREADS }.grid(items)
    }
}

/// Elements of a vector.
pub(crate) const fn vector_elements(element: ElementType) -> u64 {
    VECTOR_BYTES / element.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_vector_for_every_element_and_none_is_idle() {
        for element in ElementType::ALL {
            let width = vector_elements(element);
            for aligned in [false, true] {
                for elements in (1..40_000).filter(|n| !aligned || n % width == 0) {
                    let span = Span::new(elements, element, aligned);
                    let partial = if aligned { 0 } else { width - 1 };
                    let vectors = (span.items * elements + partial).div_ceil(width);
                    let Span { items, tiles, steps } = span;
                    assert!(tiles * THREADS * steps >= vectors, "{elements} {span:?}");
                    assert!((tiles - 1) * THREADS * steps < vectors, "{elements} {span:?}");
                    assert!((1..=MAX_STEPS).contains(&steps) && (items == 1 || tiles == 1));
                }
            }
        }
    }

    #[test]
    fn small_items_share_a_block_and_blocks_share_large_items() {
        let span = |elements| Span::new(elements, ElementType::F16, true);
        assert_eq!(span(64 * 64), Span { items: 2, tiles: 1, steps: 4 });
        assert_eq!(span(96 * 96), Span { items: 1, tiles: 2, steps: 3 });
        assert_eq!(span(1 << 20), Span { items: 1, tiles: 128, steps: 4 });
        assert_eq!(span(8), Span { items: 1024, tiles: 1, steps: 4 });
        let groups = |items| span(64 * 64).grid(items).0.grid.z;
        assert_eq!((groups(5), groups(0)), (3, 0));
    }
}
