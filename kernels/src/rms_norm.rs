//! Root mean square norm of rows: `out = x / sqrt(mean(x^2) + epsilon) * weight`.
//!
//! Language models normalise every token, and video models every position: with rows on grid y,
//! 65,536 tokens are one too many.

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::element::{Element, ElementType};
use crate::error::KernelError;
use crate::operation::{Code, Operation, Sealed, U64, memory, source};
use crate::rows::Rows;

/// Columns that a thread of the kernel has room for, at most: 64 Ki threads' worth of rows do not
/// come up.
const MAX_COLUMNS: u64 = 1 << 20;
/// The most threads of a block, and of a row.
const MAX_THREADS: u64 = 512;
/// Threads of a block of short rows.
const MIN_THREADS: u64 = 128;
const WARP: u64 = 32;

/// The norm of each of `rows` rows of `columns` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNorm {
    rows: Rows,
}

impl RmsNorm {
    /// The norm of `[rows, columns]`.
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

    const fn is_aligned(&self) -> bool {
        self.rows.are_whole_vectors()
    }

    /// Threads of a row: whole warps, each with some 16 bytes to take.
    fn threads_per_row(&self) -> u64 {
        let step = if self.is_aligned() { 16 / self.rows.element().bytes() } else { 1 };
        self.rows.columns().div_ceil(2 * step).next_power_of_two().clamp(WARP, MAX_THREADS)
    }

    fn threads(&self) -> u64 {
        self.threads_per_row().max(MIN_THREADS)
    }

    fn rows_per_block(&self) -> u64 {
        self.threads() / self.threads_per_row()
    }
}

impl Sealed for RmsNorm {}

impl Operation for RmsNorm {
    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let memory = memory(self.is_aligned());
        Ok(Code {
            kernel: "rms_norm",
            source: source!("rms_norm.cu"),
            defines: vec![
                ("ELEMENT", self.rows.element().number()),
                ("COLUMNS", self.rows.columns()),
                ("THREADS", self.threads()),
                ("ROWS", self.rows_per_block()),
                ("ALIGNED", self.is_aligned().into()),
            ],
            architecture_specific: false,
            parameters: vec![memory, memory, memory, U64, Parameter::of::<f32>()],
        })
    }

    fn request(&self) -> LaunchRequest {
        self.rows.request(self.rows_per_block(), self.threads())
    }

    fn batch(&self) -> BatchAxis {
        self.rows.batch(self.rows_per_block())
    }
}

#[cfg(feature = "profile")]
impl crate::tunable::Tunable for RmsNorm {
    const KERNEL: &'static str = "rms_norm";

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
    use gridguard::cuda::Args;

    use super::{Element, KernelError, RmsNorm};
    use crate::kernels::Prepared;
    use crate::tensor::{Tensor, TensorMut, check_contiguous, check_element};

    impl Prepared<RmsNorm> {
        /// Submits the launches to `stream` and answers how many there are; returns before they have
        /// run. x and out are `[rows, columns]`, weight is `[columns]`, contiguous.
        ///
        /// # Errors
        ///
        /// [`KernelError`] where a tensor has another type, shape or length, before anything is
        /// launched; [`KernelError::Launch`] where the driver refuses.
        #[track_caller]
        pub fn launch<T, X, W, O>(
            &self,
            stream: &CudaStream,
            x: Tensor<'_, X, 2>,
            weight: Tensor<'_, W, 1>,
            epsilon: f32,
            out: TensorMut<'_, O, 2>,
        ) -> Result<u64, KernelError>
        where
            T: Element + DeviceRepr,
            X: DevicePtr<T>,
            W: DevicePtr<T>,
            O: DevicePtrMut<T>,
        {
            let rows = self.operation().rows;
            let (dims, columns) = (rows.dims(), rows.columns());
            check_element::<T>(rows.element())?;
            check_contiguous("x", x.memory, &x.extent, dims)?;
            check_contiguous("weight", weight.memory, &weight.extent, [columns])?;
            check_contiguous("out", out.memory, &out.extent, dims)?;
            let mut args = Args::new(stream);
            args.read_items(x.memory, columns)
                .write_items(out.memory, columns)
                .read(weight.memory)
                .length()
                .value(epsilon);
            self.submit(args)
        }
    }
}

/// One row in f64: x and weight are of `columns` elements.
#[must_use]
pub fn reference<T: Element>(x: &[T], weight: &[T], epsilon: f32) -> Vec<f64> {
    let wide = |x: &T| f64::from(x.widen());
    // Rows of 2^53 elements do not fit into memory, so the length is exact.
    let count = x.iter().map(|_| 1.0).sum::<f64>();
    let mean = x.iter().map(|x| wide(x) * wide(x)).sum::<f64>() / count;
    let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
    x.iter().zip(weight).map(|(x, weight)| wide(x) * scale * wide(weight)).collect()
}

/// The largest relative Frobenius error that a correct kernel has: arithmetic is f32, and the output
/// is rounded once, by half a unit in the last place at most. f32 has up to a few thousand squares to
/// sum in a thread, whose errors of 2^-24 average out, and a reciprocal root good to 2 units.
#[must_use]
pub const fn tolerance(element: ElementType) -> f64 {
    element.rounding_error()
}

#[cfg(test)]
mod tests {
    use gridguard::Dim3;

    use super::*;

    #[test]
    fn rows_on_y_overflow_from_65_536_blocks_on() {
        let norm = RmsNorm::new(65_536, 4096, ElementType::F16).expect("legal");
        assert_eq!(norm.request().grid, Dim3::new(1, 65_536, 1));
        assert_eq!(norm.batch().blocks(65_536), Some(65_536));
        // Short rows share a block.
        let norm = RmsNorm::new(10, 64, ElementType::F16).expect("legal");
        assert_eq!(norm.request().grid.y, 3);
        assert_eq!(norm.request().grid.y, norm.batch().blocks(10).expect("counted"));
    }

    #[test]
    fn rows_that_are_no_whole_vectors_go_one_element_at_a_time() {
        let parameters = |columns| {
            let norm = RmsNorm::new(1, columns, ElementType::F16).expect("legal");
            norm.code(&DeviceLimits::any_device()).expect("any device").parameters[0]
        };
        assert_eq!(parameters(64), Parameter::AlignedMemory { bytes: 16 });
        assert_eq!(parameters(63), Parameter::Memory);
    }

    #[test]
    fn the_norm_of_equal_elements_is_the_weight() {
        let out = reference(&[3.0_f32; 4], &[1.0, 2.0, 3.0, -4.0], 0.0);
        assert_eq!(out, [1.0, 2.0, 3.0, -4.0]);
    }

    #[test]
    fn sizes_that_the_kernel_cannot_take_are_errors() {
        assert!(RmsNorm::new(1, 0, ElementType::F16).is_err());
        assert!(RmsNorm::new(u64::MAX, 2, ElementType::F16).is_err());
        assert!(RmsNorm::new(0, 64, ElementType::F16).is_ok());
    }
}
