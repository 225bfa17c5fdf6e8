//! Softmax of rows: `out = exp(x - max(x)) / sum(exp(x - max(x)))`.
//!
//! Unfused attention applies it to every query of every head. Rows are on grid y, which
//! 65,536 one-row blocks overflow.

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest};

use crate::blocks::{MAX_COLUMNS, Rows};
use crate::element::{Element, ElementType, widened};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::{CudaStream, Prepared, Tensor, TensorMut};
use crate::operation::{Code, Operation, U64, VECTOR_BYTES, WARP, memory, source};

const SOURCE: &str = source!("softmax.cu");

/// The fewest threads of a block without staging.
const MIN_THREADS: u64 = 128;
/// Vectors of a row for each thread, while that leaves several blocks on a multiprocessor.
const VECTORS: u64 = 4;
/// The most threads of a row whose vectors fit into their registers.
const KEPT_THREADS: u64 = 512;
/// Threads of a longer row.
const MAX_THREADS: u64 = 1024;
/// The most vectors of a row that a thread keeps in registers.
const KEPT_VECTORS: u64 = 8;

/// The most columns of rows that are staged in shared memory.
const MAX_STAGED_COLUMNS: u64 = 1024;
const STAGED_THREADS: u64 = 256;
/// Elements of a staged row for each thread, up to a warp for each row.
const STAGED_ELEMENTS: u64 = 8;
/// Bytes of rows that a block stages, unless each thread would serve too many rows.
const STAGED_BYTES: u64 = 8192;
const MAX_ROWS_PER_THREAD: u64 = 4;

/// The softmax of each of `rows` rows of `columns` elements.
///
/// The largest element is subtracted first, so that finite elements never give NaN. An element of
/// -inf gives 0, also in a row of nothing else; a row with a NaN or +inf is NaN throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    rows: Rows,
}

/// How threads share the rows.
struct Geometry {
    threads_per_row: u64,
    /// Threads of a block.
    threads: u64,
    /// Rows of a block.
    rows: u64,
    /// Whether rows go through shared memory.
    staged: bool,
}

impl Softmax {
    /// The softmax of `[rows, columns]` along the columns.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for columns outside 1 to 1,048,576; [`KernelError::TooLarge`] if
    /// 64 bits cannot count the bytes. Zero rows are allowed.
    pub fn new(rows: u64, columns: u64, element: ElementType) -> Result<Self, KernelError> {
        Ok(Self { rows: Rows::new(rows, columns, element, MAX_COLUMNS)? })
    }

    /// The shape of x and out.
    pub const fn dims(&self) -> [u64; 2] {
        self.rows.dims()
    }

    fn geometry(&self) -> Geometry {
        let Rows { columns, element, .. } = self.rows;
        let aligned = self.rows.are_whole_vectors();
        if !aligned && columns <= MAX_STAGED_COLUMNS {
            return self.staged();
        }
        // A row that begins within a vector may reach into one more.
        let shift = if aligned { 0 } else { VECTOR_BYTES / element.bytes() - 1 };
        let vectors = ((columns + shift) * element.bytes()).div_ceil(VECTOR_BYTES);
        let threads_per_row = if vectors <= WARP {
            vectors.next_power_of_two()
        } else if vectors <= KEPT_VECTORS * KEPT_THREADS {
            (WARP * vectors.div_ceil(VECTORS * WARP)).min(KEPT_THREADS)
        } else {
            MAX_THREADS
        };
        let rows = MIN_THREADS.div_ceil(threads_per_row);
        Geometry { threads_per_row, threads: threads_per_row * rows, rows, staged: false }
    }

    fn staged(&self) -> Geometry {
        let Rows { columns, element, .. } = self.rows;
        let threads_per_row = columns.div_ceil(STAGED_ELEMENTS).next_power_of_two().min(WARP);
        let at_once = STAGED_THREADS / threads_per_row;
        let bytes = at_once * columns * element.bytes();
        let rows = at_once * STAGED_BYTES.div_ceil(bytes).min(MAX_ROWS_PER_THREAD);
        Geometry { threads_per_row, threads: STAGED_THREADS, rows, staged: true }
    }
}

impl Operation for Softmax {
    const KERNEL: &'static str = "softmax";
    const SIZES: &'static [&'static str] = Rows::SIZES;
    const SOURCES: &'static [&'static str] = &[SOURCE];

    fn problem(&self) -> (Vec<u64>, String) {
        self.rows.problem()
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let memory = memory(self.rows.are_whole_vectors());
        let geometry = self.geometry();
        let code = Code::new::<Self>(SOURCE, self.rows.element, vec![memory, memory, U64]);
        Ok(code.with([
            ("COLUMNS", self.rows.columns),
            ("THREADS", geometry.threads),
            ("THREADS_PER_ROW", geometry.threads_per_row),
            ("ROWS", geometry.rows),
            ("STAGED", geometry.staged.into()),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let Geometry { threads, rows, .. } = self.geometry();
        self.rows.grid(rows, threads)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<Softmax> {
    /// Submits the launches to `stream` and returns their number without waiting for them. x and out
    /// are `[rows, columns]`, contiguous.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another type, shape or length, before anything is launched;
    /// [`KernelError::Launch`] if memory is misaligned or the driver rejects the launch.
    #[track_caller]
    pub fn launch<T: Element>(
        &self,
        stream: &CudaStream,
        x: Tensor<'_, T, 2>,
        out: TensorMut<'_, T, 2>,
    ) -> Result<u64, KernelError> {
        let rows = self.operation().rows;
        self.launch_items(stream, rows.element, ("x", x, rows.dims()), (out, rows.dims()))
    }
}

/// One row in f64.
pub fn reference<T: Element>(x: &[T]) -> Vec<f64> {
    // `max` ignores NaN; the sum does not.
    let most = widened(x).fold(f64::MIN, f64::max);
    let weights: Vec<f64> = widened(x).map(|x| (x - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| if sum == 0.0 { 0.0 } else { weight / sum }).collect()
}

/// The largest relative Frobenius error of a correct kernel over rows of `columns` elements.
///
/// Arithmetic is f32, and the output is rounded once, by half a unit in the last place at most. f32
/// has an exponential accurate to 2 units and sums up to a thousand weights in a thread, whose errors
/// of 2^-24 average out. Weights of long rows are subnormal in f16, where a unit is always
/// 2^-24. A row of equal weights has the smallest norm, `columns`^-1/2, and so an error of up to
/// 2^-25 `columns`.
pub fn tolerance(element: ElementType, columns: u64) -> f64 {
    // Exact: there are at most 2^20 columns.
    let columns = u32::try_from(columns).map_or(f64::INFINITY, f64::from);
    match element {
        ElementType::F16 => 5e-4 + 3e-8 * columns,
        ElementType::Bf16 => 4e-3,
        ElementType::F32 => 2e-6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn softmax(rows: u64, columns: u64) -> Softmax {
        Softmax::new(rows, columns, ElementType::F16).expect("legal")
    }

    #[test]
    fn short_rows_of_partial_vectors_are_staged_in_shared_memory() {
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
                assert!(threads.is_multiple_of(WARP) && threads <= MAX_THREADS, "{columns}");
                assert!(rows.is_multiple_of(threads / threads_per_row), "{columns}");
                if staged {
                    // Whole vectors, for any length of a row.
                    assert!(rows.is_multiple_of(8), "{columns}");
                    assert!(rows * columns * element.bytes() <= 48 << 10, "{columns}");
                } else {
                    assert_eq!(threads, rows * threads_per_row, "{columns}");
                }
            }
        }
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
}
