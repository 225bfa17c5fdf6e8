//! What kernels over the rows of a matrix share: rows are items on grid y, some to a block.

use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest};

use crate::element::ElementType;
use crate::error::KernelError;
use crate::size::{check_elements, check_size};

/// Rows of elements, contiguous, all of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rows {
    count: u64,
    columns: u64,
    element: ElementType,
}

impl Rows {
    /// `count` rows of 1 to `most` columns, whose elements count in 64 bits.
    pub(crate) fn new(
        count: u64,
        columns: u64,
        element: ElementType,
        most: u64,
    ) -> Result<Self, KernelError> {
        check_size("columns", columns, 1..=most)?;
        check_elements(&[count, columns])?;
        Ok(Self { count, columns, element })
    }

    /// `[rows, columns]`.
    pub(crate) const fn dims(self) -> [u64; 2] {
        [self.count, self.columns]
    }

    /// Elements of a row.
    pub(crate) const fn columns(self) -> u64 {
        self.columns
    }

    pub(crate) const fn element(self) -> ElementType {
        self.element
    }

    /// Whether every row begins where a vector of 16 bytes does.
    pub(crate) const fn are_whole_vectors(self) -> bool {
        (self.columns * self.element.bytes()).is_multiple_of(16)
    }

    /// Bytes of all rows where a column takes so many, read and written.
    pub(crate) fn bytes_of(self, bytes_per_column: u64) -> u128 {
        u128::from(self.count) * u128::from(self.columns) * u128::from(bytes_per_column)
    }

    /// The launch over all rows.
    pub(crate) fn request(self, rows_per_block: u64, threads: u64) -> LaunchRequest {
        let blocks = self.count.div_ceil(rows_per_block);
        LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::new(threads, 1, 1))
    }

    /// The rows as items.
    pub(crate) fn batch(self, rows_per_block: u64) -> BatchAxis {
        batch_of(self.count, rows_per_block)
    }

    /// What a profile calls the sizes.
    #[cfg(feature = "profile")]
    pub(crate) fn sizes(self) -> Vec<(&'static str, u64)> {
        vec![("rows", self.count), ("columns", self.columns)]
    }
}

/// So many rows as items.
pub(crate) fn batch_of(rows: u64, rows_per_block: u64) -> BatchAxis {
    BatchAxis::new(Axis::Y, rows).items_per_block(rows_per_block).foldable()
}
