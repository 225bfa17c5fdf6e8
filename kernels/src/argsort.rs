//! Argsort of rows: `out[r][p]` is the column of the element of rank `p` in row `r`.
//!
//! Sampling sorts the scores of every token, and nearest-neighbour search those of every query: with
//! rows on grid y, 65,536 of them are one too many.

use core::cmp::Ordering;

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::element::{Element, ElementType};
use crate::error::KernelError;
use crate::operation::{Code, Operation, Sealed, U64, source};
use crate::rows::Rows;

/// Shared memory of a multiprocessor holds no more, with what goes along with them.
const MAX_COLUMNS: u64 = 1 << 15;
/// Threads of a block of short rows.
const MIN_THREADS: u64 = 128;
/// Words that a thread of the kernel holds.
const WORDS: u64 = 32;
const WORD_BYTES: u64 = 4;

/// Which end a sort begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The least element first.
    Ascending,
    /// The greatest element first.
    Descending,
}

impl Order {
    /// The name: `ascending` or `descending`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ascending => "ascending",
            Self::Descending => "descending",
        }
    }
}

/// The order of each of `rows` rows of `columns` elements.
///
/// Equal elements keep their order, in either direction. -0 equals +0; NaN is greater than all else
/// and equals NaN, whatever its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argsort {
    rows: Rows,
    order: Order,
}

impl Argsort {
    /// The order of `[rows, columns]` along the columns.
    ///
    /// A row must fit into the shared memory of a block: 16,384 columns of f16 or bf16 take 66 KiB,
    /// of f32 100 KiB. A plan for a device that has less is refused.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for columns outside 1 to 32,768; [`KernelError::TooLarge`] past
    /// 64 bits. Zero rows are allowed: there is nothing to do.
    pub fn new(
        rows: u64,
        columns: u64,
        element: ElementType,
        order: Order,
    ) -> Result<Self, KernelError> {
        Ok(Self { rows: Rows::new(rows, columns, element, MAX_COLUMNS)?, order })
    }

    /// The shape of x and out.
    #[must_use]
    pub const fn dims(&self) -> [u64; 2] {
        self.rows.dims()
    }

    /// Which end a row begins with.
    #[must_use]
    pub const fn order(&self) -> Order {
        self.order
    }

    /// Bytes that must move at least: x read once, out, of 4 bytes an element, written once.
    #[must_use]
    pub fn least_bytes(&self) -> u128 {
        self.rows.bytes_of(self.rows.element().bytes() + WORD_BYTES)
    }

    /// Columns with those that fill them up to a power of two, two at least.
    const fn places(&self) -> u64 {
        let places = self.rows.columns().next_power_of_two();
        if places < 2 { 2 } else { places }
    }

    const fn threads_per_row(&self) -> u64 {
        self.places().div_ceil(WORDS)
    }

    fn threads(&self) -> u64 {
        self.threads_per_row().max(MIN_THREADS)
    }

    fn rows_per_block(&self) -> u64 {
        self.threads() / self.threads_per_row()
    }

    /// Shared memory of a row: a word for each place and one more for every 32, and half of that
    /// again where an element has two halves to sort by, a whole word for each thread.
    fn bytes_per_row(&self) -> u64 {
        let (places, threads) = (self.places(), self.threads_per_row());
        let words = places + threads;
        let halves = places / 2 + threads;
        let halves = if self.rows.element() == ElementType::F32 { halves } else { 0 };
        (words + halves) * WORD_BYTES
    }
}

impl Sealed for Argsort {}

impl Operation for Argsort {
    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        Ok(Code {
            kernel: "argsort",
            source: source!("argsort.cu"),
            defines: vec![
                ("ELEMENT", self.rows.element().number()),
                ("COLUMNS", self.rows.columns()),
                ("LOG", self.places().ilog2().into()),
                ("THREADS", self.threads()),
                ("ROWS", self.rows_per_block()),
                ("DESCENDING", (self.order == Order::Descending).into()),
            ],
            architecture_specific: false,
            parameters: vec![Parameter::Memory, Parameter::Memory, U64],
        })
    }

    fn request(&self) -> LaunchRequest {
        let rows = self.rows_per_block();
        self.rows.request(rows, self.threads()).dynamic_shared_bytes(rows * self.bytes_per_row())
    }

    fn batch(&self) -> BatchAxis {
        self.rows.batch(self.rows_per_block())
    }
}

#[cfg(feature = "profile")]
impl crate::tunable::Tunable for Argsort {
    const KERNEL: &'static str = "argsort";

    fn sizes(&self) -> Vec<(&'static str, u64)> {
        self.rows.sizes()
    }

    fn dtypes(&self) -> String {
        self.rows.element().to_string()
    }

    fn with_items(&self, rows: u64) -> Result<Self, KernelError> {
        Self::new(rows, self.rows.columns(), self.rows.element(), self.order)
    }

    fn variant(&self) -> String {
        self.order.name().to_owned()
    }
}

#[cfg(feature = "cuda")]
mod device {
    use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};

    use super::{Argsort, Element, KernelError};
    use crate::kernels::Prepared;
    use crate::tensor::{Tensor, TensorMut};

    impl Prepared<Argsort> {
        /// Submits the launches to `stream` and answers how many there are; returns before they have
        /// run. x is `[rows, columns]` and out, of columns counted from 0, the same, contiguous.
        ///
        /// # Errors
        ///
        /// [`KernelError`] where a tensor has another type, shape or length, before anything is
        /// launched; [`KernelError::Launch`] where the driver refuses.
        #[track_caller]
        pub fn launch<T, X, O>(
            &self,
            stream: &CudaStream,
            x: Tensor<'_, X, 2>,
            out: TensorMut<'_, O, 2>,
        ) -> Result<u64, KernelError>
        where
            T: Element + DeviceRepr,
            X: DevicePtr<T>,
            O: DevicePtrMut<u32>,
        {
            let rows = self.operation().rows;
            let (dims, element) = (rows.dims(), rows.element());
            self.launch_items(stream, element, ("x", x, dims), (out, dims))
        }
    }
}

/// The order of one row, exactly as a correct kernel gives it.
#[must_use]
pub fn reference<T: Element>(x: &[T], order: Order) -> Vec<u32> {
    let mut columns: Vec<(u32, f32)> = (0..).zip(x.iter().map(|x| x.widen())).collect();
    columns.sort_by(|(_, one), (_, other)| match order {
        Order::Ascending => compare(*one, *other),
        Order::Descending => compare(*other, *one),
    });
    columns.into_iter().map(|(column, _)| column).collect()
}

/// As numbers, NaN last.
fn compare(one: f32, other: f32) -> Ordering {
    one.partial_cmp(&other).unwrap_or_else(|| one.is_nan().cmp(&other.is_nan()))
}

#[cfg(test)]
mod tests {
    use gridguard::Dim3;

    use super::*;

    fn argsort(rows: u64, columns: u64, element: ElementType) -> Argsort {
        Argsort::new(rows, columns, element, Order::Ascending).expect("legal")
    }

    #[test]
    fn rows_on_y_overflow_from_65_536_blocks_on() {
        let long = argsort(65_536, 8192, ElementType::F16);
        assert_eq!(long.request().grid, Dim3::new(1, 65_536, 1));
        assert_eq!(long.request().block, Dim3::new(256, 1, 1));
        assert_eq!(long.batch().blocks(65_536), Some(65_536));
        // Short rows share a block.
        let short = argsort(1000, 100, ElementType::F16);
        assert_eq!((short.request().grid.y, short.request().block.x), (32, 128));
        assert_eq!(short.batch().blocks(1000), Some(32));
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

    #[test]
    fn sizes_that_the_kernel_cannot_take_are_errors() {
        let new = |rows, columns| Argsort::new(rows, columns, ElementType::F16, Order::Ascending);
        assert!(new(1, 0).is_err() && new(1, 32_769).is_err());
        assert!(new(u64::MAX, 2).is_err());
        assert!(new(0, 64).is_ok());
    }
}
