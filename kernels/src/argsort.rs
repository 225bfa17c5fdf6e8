//! Argsort of rows: `out[r][p]` is the column of the element of rank `p` in row `r`.
//!
//! Language models sort the scores of every token to sample from them, and nearest-neighbour search sorts the distances
//! of every query. Rows are on grid y, which 65,536 one-row blocks overflow.

use core::cmp::Ordering;

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::blocks::Rows;
use crate::element::{Element, ElementType};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::{CudaStream, Prepared, Tensor, TensorMut};
use crate::operation::{Code, Operation, U64, source};

const SOURCE: &str = source!("argsort.cu");

/// The longest row that fits into shared memory: 200 KiB for f32.
const MAX_COLUMNS: u64 = 1 << 15;
/// The fewest threads of a block; short rows share it.
const MIN_THREADS: u64 = 128;
/// Words that a thread sorts.
const WORDS: u64 = 32;
const WORD_BYTES: u64 = 4;

/// The direction of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The smallest element first.
    Ascending,
    /// The largest element first.
    Descending,
}

impl Order {
    /// The name: `ascending` or `descending`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ascending => "ascending",
            Self::Descending => "descending",
        }
    }
}

/// The sorting order of each of `rows` rows of `columns` elements.
///
/// Stable in both directions: equal elements keep their order. -0 equals +0; NaN is larger than
/// everything else and equals NaN, regardless of its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argsort {
    rows: Rows,
    order: Order,
}

impl Argsort {
    /// Sorts `[rows, columns]` along the columns.
    ///
    /// A row must fit into the shared memory of a block: 16,384 columns of f16 or bf16 need 66 KiB,
    /// of f32 100 KiB. Planning fails on devices with less.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for columns outside 1 to 32,768; [`KernelError::TooLarge`] if 64 bits
    /// cannot count the bytes. Zero rows are allowed.
    pub fn new(
        rows: u64,
        columns: u64,
        element: ElementType,
        order: Order,
    ) -> Result<Self, KernelError> {
        Ok(Self { rows: Rows::new(rows, columns, element, MAX_COLUMNS)?, order })
    }

    /// The shape of x and out.
    pub const fn dims(&self) -> [u64; 2] {
        self.rows.dims()
    }

    /// Columns rounded up to a power of two, at least two.
    const fn padded_columns(&self) -> u64 {
        let columns = self.rows.columns.next_power_of_two();
        if columns < 2 { 2 } else { columns }
    }

    const fn threads_per_row(&self) -> u64 {
        self.padded_columns().div_ceil(WORDS)
    }

    fn threads(&self) -> u64 {
        self.threads_per_row().max(MIN_THREADS)
    }

    fn rows_per_block(&self) -> u64 {
        self.threads() / self.threads_per_row()
    }

    /// Shared memory of a row: a word for each padded column and one more for each thread; for f32
    /// half a word more for each column and a word for each thread.
    fn bytes_per_row(&self) -> u64 {
        let (columns, threads) = (self.padded_columns(), self.threads_per_row());
        let halves = if self.rows.element == ElementType::F32 { columns / 2 + threads } else { 0 };
        (columns + threads + halves) * WORD_BYTES
    }
}

impl Operation for Argsort {
    const KERNEL: &'static str = "argsort";
    const SIZES: &'static [&'static str] = Rows::SIZES;
    const SOURCES: &'static [&'static str] = &[SOURCE];

    fn problem(&self) -> (Vec<u64>, String) {
        self.rows.problem()
    }

    fn variant(&self) -> String {
        self.order.name().to_owned()
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let code = Code::new::<Self>(
            SOURCE,
            self.rows.element,
            vec![Parameter::Memory, Parameter::Memory, U64],
        );
        Ok(code.with([
            ("COLUMNS", self.rows.columns),
            ("LOG", self.padded_columns().ilog2().into()),
            ("THREADS", self.threads()),
            ("ROWS", self.rows_per_block()),
            ("DESCENDING", (self.order == Order::Descending).into()),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let rows = self.rows_per_block();
        let (request, batch) = self.rows.grid(rows, self.threads());
        (request.dynamic_shared_bytes(rows * self.bytes_per_row()), batch)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<Argsort> {
    /// Submits the launches to `stream` and returns their number without waiting for them. x is
    /// `[rows, columns]`; out, of columns counted from 0, has the same shape; both are contiguous.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another type, shape or length, before anything is launched;
    /// [`KernelError::Launch`] if the driver rejects the launch.
    #[track_caller]
    pub fn launch<T: Element>(
        &self,
        stream: &CudaStream,
        x: Tensor<'_, T, 2>,
        out: TensorMut<'_, u32, 2>,
    ) -> Result<u64, KernelError> {
        let rows = self.operation().rows;
        self.launch_items(stream, rows.element, ("x", x, rows.dims()), (out, rows.dims()))
    }
}

/// The order of one row, exactly as a correct kernel returns it.
pub fn reference<T: Element>(x: &[T], order: Order) -> Vec<u32> {
    let mut columns: Vec<(u32, f32)> = (0..).zip(x.iter().map(|x| x.widen())).collect();
    columns.sort_by(|(_, one), (_, other)| match order {
        Order::Ascending => compare(*one, *other),
        Order::Descending => compare(*other, *one),
    });
    columns.into_iter().map(|(column, _)| column).collect()
}

/// Orders numbers, NaN last.
fn compare(one: f32, other: f32) -> Ordering {
    one.partial_cmp(&other).unwrap_or_else(|| one.is_nan().cmp(&other.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argsort(rows: u64, columns: u64, element: ElementType) -> Argsort {
        Argsort::new(rows, columns, element, Order::Ascending).expect("legal")
    }

    #[test]
    fn threads_are_whole_warps_of_whole_rows() {
        for columns in 1..=MAX_COLUMNS {
            let argsort = argsort(1, columns, ElementType::F32);
            let threads = argsort.threads();
            assert!(threads.is_multiple_of(32) && threads <= 1024);
            assert_eq!(threads, argsort.rows_per_block() * argsort.threads_per_row());
        }
    }

    #[test]
    fn the_longest_rows_fit_the_shared_memory_of_some_devices() {
        let bytes = |columns, element| argsort(1, columns, element).request().dynamic_shared_bytes;
        // 227 KiB on compute capability 9.0, 99 KiB on 8.6.
        assert_eq!(bytes(32_768, ElementType::F16), 132 << 10);
        assert_eq!(bytes(32_768, ElementType::F32), 200 << 10);
        assert_eq!(bytes(16_384, ElementType::F16), 66 << 10);
        assert_eq!(bytes(16_384, ElementType::F32), 100 << 10);
        assert_eq!(bytes(8192, ElementType::F32), 50 << 10);
        assert_eq!(bytes(1, ElementType::F32), 128 * 5 * 4);
    }

    #[test]
    fn equal_elements_keep_their_order_and_nan_is_greatest() {
        let x = [2.0_f32, f32::NAN, -0.0, 0.0, -f32::NAN, f32::INFINITY, -1.0, 2.0];
        assert_eq!(reference(&x, Order::Ascending), [6, 2, 3, 0, 7, 5, 1, 4]);
        assert_eq!(reference(&x, Order::Descending), [1, 4, 5, 0, 7, 2, 3, 6]);
    }
}
