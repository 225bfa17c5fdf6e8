//! Rows of a table by index: `out[i] = table[index[i]]`.
//!
//! Language models look up token embeddings with it. Rows of the output are on grid y, which a batch
//! of 65,536 tokens overflows.
//!
//! An index outside the table reads nothing: its row of out becomes zeros, and the kernel records the
//! first such position in an `IndexReport`.

use gridguard::{Axis, BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::bench::spec::{Input, KernelSpec, SizedProblem, TensorSpec};
use crate::blocks::Blocks;
use crate::element::{Element, ElementType, to_u64, widened};
use crate::error::KernelError;
use crate::index::{Index, IndexType};
use crate::operation::{Code, Operation, Sealed, U64, check_elements, check_size, source};
#[cfg(feature = "cuda")]
use {
    crate::bench::spec::Lookup,
    crate::bench::synthetic::scattered_row,
    crate::element::{assert_size, to_usize},
    crate::index::IndexReport,
    crate::launch::{Args, CudaStream, Prepared, Tensor, TensorMut, check_element},
    cudarc::driver::{CudaView, CudaViewMut},
    gridguard::cuda::{Memory, MemoryMut},
    std::sync::Arc,
};

const SOURCE: &str = source!("get_rows.cu");

/// The longest row whose pieces the kernel counts in 31 bits.
const MAX_COLUMNS: u64 = 1 << 30;
/// The most rows that a signed 64-bit index can name.
const MAX_TABLE_ROWS: u64 = 1 << 63;
/// Threads of a block.
const THREADS: u64 = 256;
/// Pieces that a thread loads before it stores the first: enough bytes in flight to hide the latency
/// of memory, including that of the index load before them.
const PIECES_IN_FLIGHT: u64 = 4;

/// `rows` rows of `columns` elements from a table.
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
struct Geometry {
    /// Bytes that a thread moves at once.
    piece_bytes: u64,
    /// Threads of a row.
    lanes: u64,
    /// Pieces of a row that a thread moves.
    steps: u64,
    /// Rows that a thread works on.
    passes: u64,
    /// Blocks of a row.
    tiles: u64,
}

impl GetRows {
    /// `[rows, columns]` from a table of `[table_rows, columns]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for columns outside 1 to 2^30 or an empty table;
    /// [`KernelError::TooLarge`] if 64 bits cannot count the bytes. Zero rows are allowed.
    pub fn new(
        rows: u64,
        columns: u64,
        table_rows: u64,
        element: ElementType,
        index: IndexType,
    ) -> Result<Self, KernelError> {
        check_size("columns", columns, 1..=MAX_COLUMNS)?;
        check_size("rows of the table", table_rows, 1..=MAX_TABLE_ROWS)?;
        // Indices take up to 8 bytes, two elements.
        check_elements(&[rows, columns.max(2)])?;
        check_elements(&[table_rows, columns])?;
        Ok(Self { rows, columns, table_rows, element, index })
    }

    /// The shape of out.
    pub const fn dims(&self) -> [u64; 2] {
        [self.rows, self.columns]
    }

    /// The shape of the table.
    pub const fn table_dims(&self) -> [u64; 2] {
        [self.table_rows, self.columns]
    }

    fn geometry(&self) -> Geometry {
        let row_bytes = self.columns * self.element.bytes();
        // The largest power of two that divides a row, up to 16.
        let piece_bytes = 1 << row_bytes.trailing_zeros().min(4);
        let pieces = row_bytes / piece_bytes;
        // The largest power of two that a row keeps busy.
        let lanes = (1 << pieces.ilog2()).min(THREADS);
        let steps = pieces.div_ceil(lanes).min(PIECES_IN_FLIGHT);
        let passes = PIECES_IN_FLIGHT / steps;
        Geometry { piece_bytes, lanes, steps, passes, tiles: pieces.div_ceil(lanes * steps) }
    }
}

impl Sealed for GetRows {}

impl Operation for GetRows {
    const KERNEL: &'static str = "get_rows";
    const SIZES: &'static [&'static str] = &["rows", "columns", "table_rows"];

    fn problem(&self) -> (Vec<u64>, String) {
        (vec![self.rows, self.columns, self.table_rows], format!("{} {}", self.element, self.index))
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let Geometry { piece_bytes, lanes, steps, passes, tiles } = self.geometry();
        let (pieces, memory) = (Parameter::AlignedMemory { bytes: piece_bytes }, Parameter::Memory);
        // Table, index, out, first bad position, rows of the table, first row, rows.
        let code = Code::new::<Self>(
            SOURCE,
            self.element,
            vec![pieces, memory, pieces, memory, U64, U64, U64],
        );
        Ok(code.with([
            ("INDEX", (self.index == IndexType::I64).into()),
            ("COLUMNS", self.columns),
            ("PIECE_BYTES", piece_bytes),
            ("THREADS", THREADS),
            ("LANES", lanes),
            ("STEPS", steps),
            ("PASSES", passes),
            ("TILES", tiles),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let Geometry { lanes, passes, tiles, .. } = self.geometry();
        let items = THREADS / lanes * passes;
        Blocks { axis: Axis::Y, items, tiles, threads: THREADS }.grid(self.rows)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<GetRows> {
    /// Submits the launches to `stream` and returns their number without waiting for them. `table` is
    /// `[table_rows, columns]`, `index` is `[rows]`, `out` is `[rows, columns]`, all contiguous. The
    /// first index outside the table is recorded in `report`; rows of `out` for such indices are
    /// zeros.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another type, shape or length, before anything is launched;
    /// [`KernelError::Launch`] if memory is misaligned or the driver rejects the launch.
    #[track_caller]
    pub fn launch<T: Element, I: Index>(
        &self,
        stream: &CudaStream,
        table: Tensor<'_, T, 2>,
        index: Tensor<'_, I, 1>,
        out: TensorMut<'_, T, 2>,
        report: &mut IndexReport,
    ) -> Result<u64, KernelError> {
        let operation = self.operation();
        check_element::<T>(operation.element)?;
        const { assert_size::<I>(I::TYPE.bytes()) };
        if I::TYPE != operation.index {
            let (given, expected) = (I::TYPE.name(), operation.index.name());
            return Err(KernelError::TensorType { tensors: "indices", given, expected });
        }
        let table = table.contiguous("table", operation.table_dims())?;
        let index = index.contiguous("index", [operation.rows])?;
        let out = out.contiguous("out", operation.dims())?;
        self.submit_rows(stream, table, index, 1, out, report)
    }

    /// Submits the launches with checked tensors. `per_index` elements of `index` are one index.
    #[track_caller]
    fn submit_rows<T, I>(
        &self,
        stream: &CudaStream,
        table: &dyn Memory<T>,
        index: &dyn Memory<I>,
        per_index: u64,
        out: &mut dyn MemoryMut<T>,
        report: &mut IndexReport,
    ) -> Result<u64, KernelError> {
        let GetRows { columns, table_rows, .. } = *self.operation();
        report.table_rows = table_rows;
        let mut args = Args::new(stream);
        args.read(table)
            .read_items(index, per_index)
            .write_items(out, columns)
            .write(&mut report.first)
            .constant(table_rows)
            .offset()
            .length();
        self.submit(args)
    }
}

impl KernelSpec for GetRows {
    type Output<T: Element> = T;

    const SOURCES: &'static [&'static str] = &[SOURCE];
    const HAS_INDICES: bool = true;
    const SHIPPED: &'static str = "f16 65536x4096x128256 131072x4096x32000 65536x2048x128256 \
        1048576x128x1000000 2097152x128x1000000 262144x1024x250000 131072x5120x32000 \
        98304x3072x50257 bf16 65536x4096x128256 f32 262144x768x30522";
    const SMALL: &'static str = "f32 4096x256x32000";

    fn build(problem: &SizedProblem, _: &DeviceLimits) -> Result<Self, KernelError> {
        let [rows, columns, table_rows, ..] = problem.sizes;
        Self::new(rows, columns, table_rows, problem.element, problem.index)
    }

    fn tensors(&self) -> TensorSpec {
        let [rows, columns] = self.table_dims();
        // Elements are only copied.
        TensorSpec::new([Input::Table { rows, columns }], columns, 0.0)
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        widened(inputs[0]).collect()
    }

    #[cfg(feature = "cuda")]
    fn lookup(&self, stream: &Arc<CudaStream>) -> Result<Option<Lookup>, KernelError> {
        // Rows that the index type cannot name become its largest value, outside any table.
        let largest = u64::MAX >> (65 - 8 * self.index.bytes());
        let rows = (0..self.rows).map(|item| scattered_row(item, self.table_rows).min(largest));
        let bytes = to_usize(self.index.bytes());
        let index: Vec<u8> =
            rows.flat_map(|row| row.to_le_bytes().into_iter().take(bytes)).collect();
        Ok(Some(Lookup { index: stream.clone_htod(&index)?, report: IndexReport::new(stream)? }))
    }

    #[cfg(feature = "cuda")]
    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        lookup: Option<&mut Lookup>,
        outputs: &mut [CudaViewMut<'_, T>],
    ) -> Result<u64, KernelError> {
        let (given, expected) = ("not given", "with");
        let missing = KernelError::Argument { argument: "index", given, expected };
        let (Some(Lookup { index, report }), [out]) = (lookup, outputs) else {
            return Err(missing);
        };
        let index_bytes = prepared.operation().index.bytes();
        prepared.submit_rows(stream, &inputs[0], index, index_bytes, out, report)
    }
}

/// The rows of `table`, of `columns` elements each, that `index` names, one after another. Elements
/// after the table's last whole row are ignored.
///
/// # Errors
///
/// [`KernelError::Index`] with the first index outside the table.
pub fn reference<T: Element, I: Index>(
    table: &[T],
    columns: usize,
    index: &[I],
) -> Result<Vec<f64>, KernelError> {
    let all = table.chunks_exact(columns.max(1));
    let rows = to_u64(all.len());
    let mut out = Vec::with_capacity(index.len().saturating_mul(columns));
    for (position, value) in (0..).zip(index) {
        let value: i64 = (*value).into();
        let Some(row) = usize::try_from(value).ok().and_then(|row| all.clone().nth(row)) else {
            return Err(KernelError::Index { position, value, rows });
        };
        out.extend(widened(row));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use gridguard::Dim3;

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
                let Geometry { piece_bytes, lanes, steps, passes, tiles } =
                    rows_of(1, columns, element).geometry();
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
        let geometry = rows_of(1, 4096, ElementType::F16).geometry();
        assert_eq!(
            geometry,
            Geometry { piece_bytes: 16, lanes: 256, steps: 2, passes: 2, tiles: 1 }
        );
        let geometry = rows_of(1, 128, ElementType::F16).geometry();
        assert_eq!(
            geometry,
            Geometry { piece_bytes: 16, lanes: 16, steps: 1, passes: 4, tiles: 1 }
        );
    }

    #[test]
    fn rows_are_looked_up_and_the_first_bad_index_is_an_error() {
        let table = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        assert_eq!(reference(&table, 2, &[2_i32, 0, 2]), Ok(vec![5.0, 6.0, 1.0, 2.0, 5.0, 6.0]));
        let error = reference(&table, 2, &[0_i64, 3, -1]).expect_err("three rows");
        assert_eq!(error, KernelError::Index { position: 1, value: 3, rows: 3 });
        assert_eq!(error.to_string(), "index[1] is 3, the table has 3 rows");
        let error = reference(&table, 2, &[-1_i32]).expect_err("negative");
        assert_eq!(error.to_string(), "index[0] is -1, the table has 3 rows");
    }

    #[test]
    fn unsupported_sizes_are_errors() {
        let new = |rows, columns, table_rows| {
            GetRows::new(rows, columns, table_rows, ElementType::F16, IndexType::I32)
        };
        assert!(new(1, 0, 1).is_err());
        assert!(new(1, 1, 0).is_err());
        assert!(new(u64::MAX, 2, 1).is_err());
        assert!(new(u64::MAX / 4, 1, 1).is_err(), "of 64-bit indices");
        assert!(new(1, 2, u64::MAX / 4).is_err());
        assert!(new(0, 64, 1).is_ok(), "nothing to do");
    }
}
