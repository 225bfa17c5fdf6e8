//! Softmax of rows: `out = exp(x - max(x)) / sum(exp(x - max(x)))`.
//!
//! Attention that is not fused takes it over every query of every head: with rows on grid y, 65,536
//! of them are one too many.

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest};

use crate::element::{Element, ElementType};
use crate::error::KernelError;
use crate::operation::{Code, Operation, Sealed, U64, memory, source};
use crate::rows::Rows;

const MAX_COLUMNS: u64 = 1 << 20;
/// Bytes that a thread loads and stores at once.
const VECTOR_BYTES: u64 = 16;
const WARP: u64 = 32;
/// Threads of a block that takes rows as they lie, at least.
const MIN_THREADS: u64 = 128;
/// Vectors that a thread takes of a row, as long as that leaves several blocks to a multiprocessor.
const VECTORS: u64 = 4;
/// Threads of a row, as long as its vectors fit into their registers, and beyond.
const MANY_THREADS: u64 = 512;
const MOST_THREADS: u64 = 1024;
/// Vectors of a row that a thread keeps in registers, at most.
const KEPT_VECTORS: u64 = 8;

/// Columns of rows that go through shared memory, at most.
const MAX_STAGED_COLUMNS: u64 = 1024;
const STAGED_THREADS: u64 = 256;
/// Elements of such a row that a thread takes, until a row has a warp.
const STAGED_ELEMENTS: u64 = 8;
/// Bytes of rows that such a block holds, if a thread need not serve too many rows for it.
const STAGED_BYTES: u64 = 8192;
const MAX_ROWS_PER_THREAD: u64 = 4;

/// The softmax of each of `rows` rows of `columns` elements.
///
/// Subtracting the greatest element first keeps finite elements from overflowing: they never give
/// NaN. An element of -inf has the weight 0, also in a row of nothing else, which gives zeros; a row
/// with a NaN or with +inf is NaN throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    rows: Rows,
}

/// How the rows are shared out among threads.
struct Geometry {
    threads_per_row: u64,
    threads: u64,
    rows: u64,
    staged: bool,
}

impl Softmax {
    /// The softmax of `[rows, columns]` over the columns.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for columns outside 1 to 1,048,576; [`KernelError::TooLarge`] past
    /// 64 bits. Zero rows are allowed: there is nothing to do.
    pub fn new(rows: u64, columns: u64, element: ElementType) -> Result<Self, KernelError> {
        Ok(Self { rows: Rows::new(rows, columns, element, MAX_COLUMNS)? })
    }

    /// The shape of x and out.
    #[must_use]
    pub const fn dims(&self) -> [u64; 2] {
        self.rows.dims()
    }

    /// Bytes that must move at least: x read once, out written once.
    #[must_use]
    pub fn least_bytes(&self) -> u128 {
        self.rows.bytes_of(2 * self.rows.element().bytes())
    }

    /// Whether every row begins where a vector does.
    const fn is_aligned(&self) -> bool {
        self.rows.are_whole_vectors()
    }

    fn geometry(&self) -> Geometry {
        let (columns, element) = (self.rows.columns(), self.rows.element());
        if !self.is_aligned() && columns <= MAX_STAGED_COLUMNS {
            return self.staged();
        }
        // A row that begins within a vector may reach into one more.
        let shift = if self.is_aligned() { 0 } else { VECTOR_BYTES / element.bytes() - 1 };
        let vectors = ((columns + shift) * element.bytes()).div_ceil(VECTOR_BYTES);
        let threads_per_row = if vectors <= WARP {
            vectors.next_power_of_two()
        } else if vectors <= KEPT_VECTORS * MANY_THREADS {
            (WARP * vectors.div_ceil(VECTORS * WARP)).min(MANY_THREADS)
        } else {
            MOST_THREADS
        };
        let rows = MIN_THREADS.div_ceil(threads_per_row);
        Geometry { threads_per_row, threads: threads_per_row * rows, rows, staged: false }
    }

    fn staged(&self) -> Geometry {
        let (columns, element) = (self.rows.columns(), self.rows.element());
        let threads_per_row = columns.div_ceil(STAGED_ELEMENTS).next_power_of_two().min(WARP);
        let at_once = STAGED_THREADS / threads_per_row;
        let bytes = at_once * columns * element.bytes();
        let rows = at_once * STAGED_BYTES.div_ceil(bytes).min(MAX_ROWS_PER_THREAD);
        Geometry { threads_per_row, threads: STAGED_THREADS, rows, staged: true }
    }
}

impl Sealed for Softmax {}

impl Operation for Softmax {
    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let memory = memory(self.is_aligned());
        let geometry = self.geometry();
        Ok(Code {
            kernel: "softmax",
            source: source!("softmax.cu"),
            defines: vec![
                ("ELEMENT", self.rows.element().number()),
                ("COLUMNS", self.rows.columns()),
                ("THREADS", geometry.threads),
                ("THREADS_PER_ROW", geometry.threads_per_row),
                ("ROWS", geometry.rows),
                ("STAGED", geometry.staged.into()),
            ],
            architecture_specific: false,
            parameters: vec![memory, memory, U64],
        })
    }

    fn request(&self) -> LaunchRequest {
        let Geometry { threads, rows, .. } = self.geometry();
        self.rows.request(rows, threads)
    }

    fn batch(&self) -> BatchAxis {
        self.rows.batch(self.geometry().rows)
    }
}

#[cfg(feature = "profile")]
impl crate::tunable::Tunable for Softmax {
    const KERNEL: &'static str = "softmax";

    fn sizes(&self) -> Vec<(&'static str, u64)> {
        self.rows.sizes()
    }

    fn dtypes(&self) -> String {
        self.rows.element().to_string()
    }

    fn with_items(&self, rows: u64) -> Result<Self, KernelError> {
        Self::new(rows, self.rows.columns(), self.rows.element())
    }
}

#[cfg(feature = "cuda")]
mod device {
    use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};

    use super::{Element, KernelError, Softmax};
    use crate::kernels::Prepared;
    use crate::tensor::{Tensor, TensorMut};

    impl Prepared<Softmax> {
        /// Submits the launches to `stream` and answers how many there are; returns before they have
        /// run. x and out are `[rows, columns]`, contiguous.
        ///
        /// # Errors
        ///
        /// [`KernelError`] where a tensor has another type, shape or length, before anything is
        /// launched; [`KernelError::Launch`] where one is not aligned or the driver refuses.
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
            O: DevicePtrMut<T>,
        {
            let rows = self.operation().rows;
            let (dims, element) = (rows.dims(), rows.element());
            self.launch_items(stream, element, ("x", x, dims), (out, dims))
        }
    }
}

/// One row in f64.
#[must_use]
pub fn reference<T: Element>(x: &[T]) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|x| f64::from(x.widen())).collect();
    // `max` passes over NaN, which the sum then finds.
    let most = x.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = x.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| if sum == 0.0 { 0.0 } else { weight / sum }).collect()
}

/// The largest relative Frobenius error over rows of `columns` elements that a correct kernel has:
/// arithmetic is f32, and the output is rounded once, by half a unit in the last place at most. f32
/// has an exponential good to 2 units and up to a thousand weights to sum in a thread, whose errors of
/// 2^-24 average out. Weights of long rows are below the normal numbers of f16, where a unit is 2^-24
/// whatever the weight; a row of equal weights has the least norm, `columns`^-1/2, and so an error of
/// up to 2^-25 `columns`.
#[must_use]
pub fn tolerance(element: ElementType, columns: u64) -> f64 {
    // Exact: there are no more than 2^20 columns.
    let columns = u32::try_from(columns).map_or(f64::INFINITY, f64::from);
    match element {
        ElementType::F16 => 5e-4 + 3e-8 * columns,
        ElementType::Bf16 => 4e-3,
        ElementType::F32 => 2e-6,
    }
}

#[cfg(test)]
mod tests {
    use gridguard::{Dim3, Parameter};

    use super::*;

    fn softmax(rows: u64, columns: u64) -> Softmax {
        Softmax::new(rows, columns, ElementType::F16).expect("legal")
    }

    #[test]
    fn rows_on_y_overflow_from_65_536_blocks_on() {
        let long = softmax(65_536, 4096);
        assert_eq!(long.request().grid, Dim3::new(1, 65_536, 1));
        assert_eq!(long.batch().blocks(65_536), Some(65_536));
        // Short rows share a block, and threads of a warp.
        let short = softmax(1000, 64);
        assert_eq!(short.request().grid.y, 63);
        assert_eq!(short.request().block, Dim3::new(128, 1, 1));
        assert_eq!(short.batch().blocks(1000), Some(63));
    }

    #[test]
    fn short_rows_that_are_no_whole_vectors_go_through_shared_memory() {
        let staged = |columns| softmax(1, columns).geometry().staged;
        assert!(staged(77) && staged(1001));
        assert!(!staged(80) && !staged(1025));
    }

    #[test]
    fn blocks_are_whole_warps_of_whole_rows_and_staged_rows_fit_shared_memory() {
        for element in ElementType::ALL {
            for columns in (1..4000).chain([50_257, 128_256, MAX_COLUMNS - 1, MAX_COLUMNS]) {
                let softmax = Softmax::new(1, columns, element).expect("legal");
                let Geometry { threads_per_row, threads, rows, staged } = softmax.geometry();
                assert!(threads.is_multiple_of(WARP) && threads <= MOST_THREADS, "{columns}");
                assert!(rows.is_multiple_of(threads / threads_per_row), "{columns}");
                if staged {
                    // Whole vectors, whatever the length of a row.
                    assert!(rows.is_multiple_of(8), "{columns}");
                    assert!(rows * columns * element.bytes() <= 48 << 10, "{columns}");
                } else {
                    assert_eq!(threads, rows * threads_per_row, "{columns}");
                }
            }
        }
    }

    #[test]
    fn only_rows_of_whole_vectors_need_memory_that_is_aligned() {
        let parameters = |columns| {
            let code = softmax(1, columns).code(&DeviceLimits::any_device());
            code.expect("any device").parameters[0]
        };
        assert_eq!(parameters(64), Parameter::AlignedMemory { bytes: 16 });
        assert_eq!((parameters(63), parameters(50_257)), (Parameter::Memory, Parameter::Memory));
    }

    #[test]
    fn weights_sum_to_one_and_special_values_spread_as_documented() {
        assert_eq!(reference(&[2.0_f32; 4]), [0.25; 4]);
        assert_eq!(reference(&[f32::NEG_INFINITY, 0.0]), [0.0, 1.0]);
        assert_eq!(reference(&[f32::NEG_INFINITY; 2]), [0.0; 2]);
        assert_eq!(reference(&[f32::MAX, f32::MIN]), [1.0, 0.0]);
        assert!(reference(&[f32::INFINITY, 0.0]).iter().all(|x| x.is_nan()));
        assert!(reference(&[f32::NAN, 0.0]).iter().all(|x| x.is_nan()));
    }

    #[test]
    fn sizes_that_the_kernel_cannot_take_are_errors() {
        assert!(Softmax::new(1, 0, ElementType::F16).is_err());
        assert!(Softmax::new(1, MAX_COLUMNS + 1, ElementType::F16).is_err());
        assert!(Softmax::new(u64::MAX, 2, ElementType::F16).is_err());
        assert!(Softmax::new(0, 64, ElementType::F16).is_ok());
    }
}
