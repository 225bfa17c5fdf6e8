//! Rows of a table by their numbers: `out[i] = table[index[i]]`.
//!
//! Language models look up the embeddings of their tokens with it. With looked-up rows on a grid axis
//! that ends at 65,535, a batch of 65,536 tokens is one too many.
//!
//! An index that names no row reads nothing. Its row of out becomes zeros, and the kernel notes the
//! first such place in an `IndexReport`, which tells when it is asked.

#[cfg(feature = "cuda")]
mod device;

use gridguard::{BatchAxis, DeviceLimits, Dim3, LaunchRequest, Parameter};

use crate::element::{Element, ElementType};
use crate::error::KernelError;
use crate::index::{Index, IndexType};
use crate::operation::{Code, Operation, Sealed, U64, source};
use crate::rows::batch_of;
use crate::size::{check_elements, check_size};

#[cfg(feature = "cuda")]
pub use device::IndexReport;

/// Columns of a row, at most: their pieces count in 31 bits.
const MAX_COLUMNS: u64 = 1 << 30;
/// The most that a 64-bit index can name.
const MAX_TABLE_ROWS: u64 = 1 << 63;
/// Threads of a block.
const THREADS: u64 = 256;
/// Pieces that a thread loads before it stores the first: enough bytes in flight to hide the way to
/// memory, also that of the index before them.
const PIECES_IN_FLIGHT: u64 = 4;

/// `rows` rows of `columns` elements out of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GetRows {
    rows: u64,
    columns: u64,
    table_rows: u64,
    element: ElementType,
    index: IndexType,
}

/// How the threads of a block share its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    /// Bytes of a piece, which a thread moves at once.
    piece_bytes: u64,
    /// Threads of a row.
    lanes: u64,
    /// Pieces that a thread takes of a row.
    steps: u64,
    /// Rows that a thread takes part in.
    passes: u64,
    /// Blocks of a row.
    tiles: u64,
}

impl GetRows {
    /// `[rows, columns]` out of a table of `[table_rows, columns]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for columns outside 1 to 2^30 or a table without rows;
    /// [`KernelError::TooLarge`] past 64 bits. Zero rows are allowed: there is nothing to do.
    pub fn new(
        rows: u64,
        columns: u64,
        table_rows: u64,
        element: ElementType,
        index: IndexType,
    ) -> Result<Self, KernelError> {
        check_size("columns", columns, 1..=MAX_COLUMNS)?;
        check_size("rows of the table", table_rows, 1..=MAX_TABLE_ROWS)?;
        // No index is wider than 8 bytes.
        check_elements(&[rows, columns.max(2)])?;
        check_elements(&[table_rows, columns])?;
        Ok(Self { rows, columns, table_rows, element, index })
    }

    /// The shape of out.
    #[must_use]
    pub const fn dims(&self) -> [u64; 2] {
        [self.rows, self.columns]
    }

    /// The shape of the table.
    #[must_use]
    pub const fn table_dims(&self) -> [u64; 2] {
        [self.table_rows, self.columns]
    }

    /// The type of the indices.
    #[must_use]
    pub const fn index(&self) -> IndexType {
        self.index
    }

    /// Bytes that must move at least where no row is asked for twice: each index and its row read
    /// once, out written once.
    #[must_use]
    pub fn least_bytes(&self) -> u128 {
        let row = u128::from(self.columns) * u128::from(self.element.bytes());
        u128::from(self.rows) * (2 * row + u128::from(self.index.bytes()))
    }

    fn work(&self) -> Work {
        let row_bytes = self.columns * self.element.bytes();
        // The largest power of two that divides a row, up to 16.
        let piece_bytes = 1 << row_bytes.trailing_zeros().min(4);
        let pieces = row_bytes / piece_bytes;
        // The largest power of two that a row keeps busy.
        let lanes = (1 << pieces.ilog2()).min(THREADS);
        let steps = pieces.div_ceil(lanes).min(PIECES_IN_FLIGHT);
        let passes = PIECES_IN_FLIGHT / steps;
        Work { piece_bytes, lanes, steps, passes, tiles: pieces.div_ceil(lanes * steps) }
    }

    fn rows_per_block(&self) -> u64 {
        let work = self.work();
        THREADS / work.lanes * work.passes
    }
}

impl Sealed for GetRows {}

impl Operation for GetRows {
    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let Work { piece_bytes, lanes, steps, passes, tiles } = self.work();
        let (pieces, memory) = (Parameter::AlignedMemory { bytes: piece_bytes }, Parameter::Memory);
        Ok(Code {
            kernel: "get_rows",
            source: source!("get_rows.cu"),
            defines: vec![
                ("ELEMENT", self.element.number()),
                ("INDEX", self.index.number()),
                ("COLUMNS", self.columns),
                ("PIECE_BYTES", piece_bytes),
                ("THREADS", THREADS),
                ("LANES", lanes),
                ("STEPS", steps),
                ("PASSES", passes),
                ("TILES", tiles),
            ],
            architecture_specific: false,
            // Table, index, out, first bad place, rows of the table, first row, rows.
            parameters: vec![pieces, memory, pieces, memory, U64, U64, U64],
        })
    }

    fn request(&self) -> LaunchRequest {
        let blocks = self.rows.div_ceil(self.rows_per_block());
        LaunchRequest::new(Dim3::new(self.work().tiles, blocks, 1), Dim3::new(THREADS, 1, 1))
    }

    fn batch(&self) -> BatchAxis {
        batch_of(self.rows, self.rows_per_block())
    }
}

#[cfg(feature = "profile")]
impl crate::tunable::Tunable for GetRows {
    const KERNEL: &'static str = "get_rows";

    fn sizes(&self) -> Vec<(&'static str, u64)> {
        vec![("rows", self.rows), ("columns", self.columns), ("table_rows", self.table_rows)]
    }

    fn dtypes(&self) -> String {
        format!("{} {}", self.element, self.index)
    }

    fn with_items(&self, rows: u64) -> Result<Self, KernelError> {
        Self::new(rows, self.columns, self.table_rows, self.element, self.index)
    }
}

/// The rows of `table`, of `columns` elements each, that `index` names, one behind the other. What the
/// table has behind its last whole row is no row.
///
/// # Errors
///
/// [`KernelError::Index`] with the first index that names no row.
pub fn reference<T: Element, I: Index>(
    table: &[T],
    columns: usize,
    index: &[I],
) -> Result<Vec<f64>, KernelError> {
    let rows = table.chunks_exact(columns.max(1));
    let count = u64::try_from(rows.len()).unwrap_or(u64::MAX);
    let mut out = Vec::with_capacity(index.len().saturating_mul(columns));
    for (position, value) in (0..).zip(index) {
        let value = value.widen();
        let Some(row) = usize::try_from(value).ok().and_then(|row| rows.clone().nth(row)) else {
            return Err(KernelError::Index { position, value, rows: count });
        };
        out.extend(row.iter().map(|x| f64::from(x.widen())));
    }
    Ok(out)
}

/// The largest relative Frobenius error that a correct kernel has: none, elements are only copied.
#[must_use]
pub const fn tolerance(_: ElementType) -> f64 {
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(rows: u64, columns: u64, element: ElementType) -> GetRows {
        GetRows::new(rows, columns, 100, element, IndexType::I64).expect("legal")
    }

    #[test]
    fn rows_on_y_overflow_from_65_536_blocks_on() {
        let wide = rows_of(65_536, 16_384, ElementType::F16);
        assert_eq!(wide.request().grid, Dim3::new(2, 65_536, 1));
        assert_eq!(wide.batch().blocks(65_536), Some(65_536));
        let short = rows_of(65_535 * 64 + 1, 128, ElementType::F16);
        assert_eq!(short.request().grid, Dim3::new(1, 65_536, 1));
        assert_eq!(short.batch().blocks(65_535 * 64 + 1), Some(65_536));
    }

    #[test]
    fn threads_cover_a_row_in_pieces_that_divide_it() {
        for element in ElementType::ALL {
            for columns in (1..3000).chain([4096, 20_000, 1 << 20]) {
                let Work { piece_bytes, lanes, steps, passes, tiles } =
                    rows_of(1, columns, element).work();
                let bytes = columns * element.bytes();
                assert!(matches!(piece_bytes, 2 | 4 | 8 | 16) && bytes % piece_bytes == 0);
                assert!(lanes * steps * tiles >= bytes / piece_bytes, "{columns}");
                assert!(lanes * steps * (tiles - 1) < bytes / piece_bytes, "{columns}");
                assert!(
                    THREADS.is_multiple_of(lanes)
                        && passes > 0
                        && steps * passes <= PIECES_IN_FLIGHT
                );
            }
        }
        let work = rows_of(1, 4096, ElementType::F16).work();
        assert_eq!(work, Work { piece_bytes: 16, lanes: 256, steps: 2, passes: 2, tiles: 1 });
        let work = rows_of(1, 128, ElementType::F16).work();
        assert_eq!(work, Work { piece_bytes: 16, lanes: 16, steps: 1, passes: 4, tiles: 1 });
    }

    #[test]
    fn rows_are_looked_up_and_the_first_bad_index_is_told() {
        let table = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        assert_eq!(reference(&table, 2, &[2_i32, 0, 2]), Ok(vec![5.0, 6.0, 1.0, 2.0, 5.0, 6.0]));
        let error = reference(&table, 2, &[0_i64, 3, -1]).expect_err("three rows");
        assert_eq!(error, KernelError::Index { position: 1, value: 3, rows: 3 });
        assert_eq!(error.to_string(), "index[1] is 3, the table has 3 rows");
        let error = reference(&table, 2, &[-1_i32]).expect_err("negative");
        assert_eq!(error.to_string(), "index[0] is -1, the table has 3 rows");
    }

    #[test]
    fn sizes_that_the_kernel_cannot_take_are_errors() {
        let new = |rows, columns, table_rows| {
            GetRows::new(rows, columns, table_rows, ElementType::F16, IndexType::I32)
        };
        assert!(new(1, 0, 1).is_err());
        assert!(new(1, 1, 0).is_err());
        assert!(new(u64::MAX, 2, 1).is_err());
        assert!(new(u64::MAX / 4, 1, 1).is_err(), "of 64-bit indices");
        assert!(new(1, 2, u64::MAX / 4).is_err());
        assert_eq!(new(0, 64, 1).expect("nothing to do").least_bytes(), 0);
        assert_eq!(new(3, 64, 1).expect("legal").least_bytes(), 3 * (2 * 128 + 4));
    }
}
