//! Root mean square norm of rows: `out = x / sqrt(mean(x^2) + epsilon) * weight`.
//!
//! Language models normalise every token, and video models every position. Rows are on grid y, which
//! 65,536 one-row blocks overflow.

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::blocks::{MAX_COLUMNS, Rows};
use crate::element::{Element, ElementType, mean, widened};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::{Args, CudaStream, Prepared, Tensor, TensorMut, check_element};
use crate::operation::{Code, Operation, U64, WARP, memory, source};

const SOURCE: &str = source!("row_parts.cu", "rms_norm.cu");

/// The most threads of a block, and of a row.
const MAX_THREADS: u64 = 512;
/// The fewest threads of a block; short rows share it.
const MIN_THREADS: u64 = 128;

/// The norm of each of `rows` rows of `columns` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNorm {
    rows: Rows,
}

impl RmsNorm {
    /// Normalises `[rows, columns]` along the columns.
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

    /// Threads of a row: whole warps, each thread with about two vectors, or elements.
    fn threads_per_row(&self) -> u64 {
        self.rows.parts().div_ceil(2).next_power_of_two().clamp(WARP, MAX_THREADS)
    }

    fn threads(&self) -> u64 {
        self.threads_per_row().max(MIN_THREADS)
    }

    fn rows_per_block(&self) -> u64 {
        self.threads() / self.threads_per_row()
    }
}

impl Operation for RmsNorm {
    const KERNEL: &'static str = "rms_norm";
    const SIZES: &'static [&'static str] = Rows::SIZES;
    const SOURCES: &'static [&'static str] = &[SOURCE];

    fn problem(&self) -> (Vec<u64>, String) {
        self.rows.problem()
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let aligned = self.rows.are_whole_vectors();
        let memory = memory(aligned);
        let code = Code::new::<Self>(
            SOURCE,
            self.rows.element,
            vec![memory, memory, memory, U64, Parameter::of::<f32>()],
        );
        Ok(code.with([
            ("COLUMNS", self.rows.columns),
            ("THREADS", self.threads()),
            ("ROWS", self.rows_per_block()),
            ("ALIGNED", aligned.into()),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        self.rows.grid(self.rows_per_block(), self.threads())
    }
}

#[cfg(feature = "cuda")]
impl Prepared<RmsNorm> {
    /// Submits the launches to `stream` and returns their number without waiting for them. x and out
    /// are `[rows, columns]`, weight is `[columns]`, all contiguous.
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
        weight: Tensor<'_, T, 1>,
        epsilon: f32,
        out: TensorMut<'_, T, 2>,
    ) -> Result<u64, KernelError> {
        let Rows { columns, element, .. } = self.operation().rows;
        check_element::<T>(element)?;
        let x = x.contiguous("x", self.operation().dims())?;
        let weight = weight.contiguous("weight", [columns])?;
        let out = out.contiguous("out", self.operation().dims())?;
        let mut args = Args::new(stream);
        args.read_items(x, columns).write_items(out, columns).read(weight).length().value(epsilon);
        self.submit(args)
    }
}

/// One row in f64: x and weight have `columns` elements.
pub fn reference<T: Element>(x: &[T], weight: &[T], epsilon: f32) -> Vec<f64> {
    let mean = mean(widened(x).map(|x| x * x));
    let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
    widened(x).zip(widened(weight)).map(|(x, weight)| x * scale * weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_norm_of_equal_elements_is_the_weight() {
        let out = reference(&[3.0_f32; 4], &[1.0, 2.0, 3.0, -4.0], 0.0);
        assert_eq!(out, [1.0, 2.0, 3.0, -4.0]);
    }
}
