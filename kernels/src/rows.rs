//! What kernels over the rows of a matrix share: rows are items on grid y, several to a block.

use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest};

use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::{VECTOR_BYTES, check_elements, check_size};

/// Contiguous rows of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rows {
    pub(crate) count: u64,
    pub(crate) columns: u64,
    pub(crate) element: ElementType,
}

impl Rows {
    /// The names of the sizes in profiles.
    #[cfg(feature = "profile")]
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

    /// As many columns of another number of rows.
    #[cfg(feature = "profile")]
    pub(crate) fn with_count(self, count: u64) -> Result<Self, KernelError> {
        check_elements(&[count, self.columns])?;
        Ok(Self { count, ..self })
    }

    /// `[rows, columns]`.
    pub(crate) const fn dims(self) -> [u64; 2] {
        [self.count, self.columns]
    }

    /// Whether every row is a multiple of 16 bytes long.
    pub(crate) const fn are_whole_vectors(self) -> bool {
        (self.columns * self.element.bytes()).is_multiple_of(VECTOR_BYTES)
    }

    /// Bytes of all rows at `bytes_per_column` bytes read and written for each column of a row.
    pub(crate) fn bytes_at(self, bytes_per_column: u64) -> u128 {
        u128::from(self.count) * u128::from(self.columns) * u128::from(bytes_per_column)
    }

    /// The launch over all rows.
    pub(crate) fn request(self, rows_per_block: u64, threads: u64) -> LaunchRequest {
        let blocks = self.count.div_ceil(rows_per_block);
        LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::new(threads, 1, 1))
    }
}

/// Rows as items, on grid y.
pub(crate) fn row_batch(rows: u64, rows_per_block: u64) -> BatchAxis {
    BatchAxis::new(Axis::Y, rows).items_per_block(rows_per_block).foldable()
}
