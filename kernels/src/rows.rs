//! What kernels over the rows of a matrix share: rows are items on grid y, some to a block.

use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest};

use crate::element::ElementType;
use crate::error::KernelError;
use crate::size::{check_elements, check_size};

/// Checks that the rows have 1 to `most` columns, and that their elements count in 64 bits.
pub(crate) fn check_rows(rows: u64, columns: u64, most: u64) -> Result<(), KernelError> {
    check_size("columns", columns, 1..=most)?;
    check_elements(&[rows, columns])
}

/// Whether every row begins where a vector of 16 bytes does.
pub(crate) const fn are_whole_vectors(columns: u64, element: ElementType) -> bool {
    (columns * element.bytes()).is_multiple_of(16)
}

/// Bytes of rows that take so many bytes a column, read and written.
pub(crate) fn bytes_of(rows: u64, columns: u64, bytes: u64) -> u128 {
    u128::from(rows) * u128::from(columns) * u128::from(bytes)
}

/// The launch over all rows.
pub(crate) fn request_of(rows: u64, rows_per_block: u64, threads: u64) -> LaunchRequest {
    let blocks = rows.div_ceil(rows_per_block);
    LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::new(threads, 1, 1))
}

/// The rows as items.
pub(crate) fn batch_of(rows: u64, rows_per_block: u64) -> BatchAxis {
    BatchAxis::new(Axis::Y, rows).items_per_block(rows_per_block).foldable()
}
