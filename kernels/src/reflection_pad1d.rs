//! Reflection padding of rows: `out[x] = input[x - left]`, mirrored at the first and the last element
//! of the row, which are not repeated.
//!
//! Audio models pad waveforms and features with it. The batch is on grid z, which 65,536 groups of
//! blocks overflow.

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::bench::spec::{Input, KernelSpec, SizedProblem, TensorSpec};
use crate::blocks::{Span, THREADS};
use crate::element::{Element, ElementType, to_usize, widened};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::{CudaStream, Prepared, Tensor, TensorMut};
use crate::operation::{Code, Operation, Sealed, U64, check_elements, check_size, source};

const SOURCE: &str = source!("reflection_pad1d.cu");

/// The widest row: a row of out is then less than three times as wide, and fits into 31 bits.
const MAX_WIDTH: u64 = 1 << 29;

/// Each row of a batch of channels, padded on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReflectionPad1d {
    batch: u64,
    channels: u64,
    width: u64,
    left: u64,
    right: u64,
    element: ElementType,
}

impl ReflectionPad1d {
    /// `dims` is `[batch, channels, width]`; `pads` are the numbers of elements before and after each
    /// row.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for zero channels, a width outside 1 to 536,870,912, or a pad not
    /// smaller than the width; [`KernelError::TooLarge`] if 64 bits cannot count the bytes. An empty
    /// batch is allowed.
    pub fn new(dims: [u64; 3], pads: [u64; 2], element: ElementType) -> Result<Self, KernelError> {
        let ([batch, channels, width], [left, right]) = (dims, pads);
        check_size("channels", channels, 1..=u64::MAX)?;
        check_size("width", width, 1..=MAX_WIDTH)?;
        check_size("left pad", left, 0..=width - 1)?;
        check_size("right pad", right, 0..=width - 1)?;
        check_elements(&[batch, channels, left + width + right])?;
        Ok(Self { batch, channels, width, left, right, element })
    }

    /// The shape of the input.
    pub const fn input_dims(&self) -> [u64; 3] {
        [self.batch, self.channels, self.width]
    }

    /// The shape of the output.
    pub const fn output_dims(&self) -> [u64; 3] {
        [self.batch, self.channels, self.left + self.width + self.right]
    }

    const fn output_item(&self) -> u64 {
        self.channels * (self.left + self.width + self.right)
    }

    fn span(&self) -> Span {
        Span::new(self.output_item(), self.element, false)
    }
}

impl Sealed for ReflectionPad1d {}

impl Operation for ReflectionPad1d {
    const KERNEL: &'static str = "reflection_pad1d";
    const SIZES: &'static [&'static str] = &["batch", "channels", "width", "left", "right"];

    fn problem(&self) -> (Vec<u64>, String) {
        (
            vec![self.batch, self.channels, self.width, self.left, self.right],
            self.element.to_string(),
        )
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let Span { items, tiles, steps } = self.span();
        let code = Code::new::<Self>(
            SOURCE,
            self.element,
            vec![Parameter::Memory, Parameter::Memory, U64],
        );
        Ok(code.with([
            ("CHANNELS", self.channels),
            ("IN_WIDTH", self.width),
            ("LEFT", self.left),
            ("RIGHT", self.right),
            ("THREADS", THREADS),
            ("STEPS", steps),
            ("ITEMS", items),
            ("TILES", tiles),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        self.span().grid(self.batch)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<ReflectionPad1d> {
    /// Submits the launches to `stream` and returns their number without waiting for them. `input` is
    /// `[batch, channels, width]`, `out` is `[batch, channels, left + width + right]`, both contiguous.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another type, shape or length, before anything is launched;
    /// [`KernelError::Launch`] if the driver rejects the launch.
    #[track_caller]
    pub fn launch<T: Element>(
        &self,
        stream: &CudaStream,
        input: Tensor<'_, T, 3>,
        out: TensorMut<'_, T, 3>,
    ) -> Result<u64, KernelError> {
        let operation = self.operation();
        let (from, to) = (operation.input_dims(), operation.output_dims());
        self.launch_items(stream, operation.element, ("input", input, from), (out, to))
    }
}

impl KernelSpec for ReflectionPad1d {
    type Output<T: Element> = T;

    const SOURCES: &'static [&'static str] = &[SOURCE];
    const SHIPPED: &'static str = "f16 16x512x20000x3x3 262144x1x1000x24x24 131072x80x48x3x3 \
        65536x1x4096x512x512 524288x1x400x200x200 8192x64x512x3x3 100000x4x512x1x1 bf16 \
        131072x1x1000x24x24 f32 131072x1x1000x24x24 4096x512x128x7x7";
    const SMALL: &'static str = "f32 1024x1x1000x24x24";

    fn build(problem: &SizedProblem, _: &DeviceLimits) -> Result<Self, KernelError> {
        let [batch, channels, width, left, right] = problem.sizes;
        Self::new([batch, channels, width], [left, right], problem.element)
    }

    fn tensors(&self) -> TensorSpec {
        // Elements are only copied.
        TensorSpec::new([Input::Items(self.channels * self.width)], self.output_item(), 0.0)
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        let padded = |row| reference(row, to_usize(self.left), to_usize(self.right));
        inputs[0].chunks(to_usize(self.width)).flat_map(padded).collect()
    }
}

/// One row with `left` elements before it and `right` after it. Empty if a pad is not smaller than
/// the row.
pub fn reference<T: Element>(row: &[T], left: usize, right: usize) -> Vec<f64> {
    if left.max(right) >= row.len() {
        return Vec::new();
    }
    let row: Vec<f64> = widened(row).collect();
    // The element next to the edge is the first to be mirrored.
    let before = row.iter().skip(1).take(left).rev();
    let after = row.iter().rev().skip(1).take(right);
    before.chain(&row).chain(after).copied().collect()
}

#[cfg(test)]
mod tests {
    use gridguard::Dim3;

    use super::*;

    fn pad(dims: [u64; 3], pads: [u64; 2]) -> ReflectionPad1d {
        ReflectionPad1d::new(dims, pads, ElementType::F16).expect("legal")
    }

    #[test]
    fn a_batch_on_z_overflows_from_65_536_groups_on() {
        let large = pad([65_536, 64, 1000], [3, 4]);
        assert_eq!(large.request().grid, Dim3::new(8, 1, 65_536));
        assert_eq!(large.batch().blocks(65_536), Some(65_536));
        // 16 items of 500 elements and the vector that is cut fit into 1,024 vectors.
        let small = pad([1_048_561, 1, 490], [5, 5]);
        assert_eq!(small.request().grid, Dim3::new(1, 1, 65_536));
        assert_eq!(small.batch().blocks(1_048_561), Some(65_536));
    }

    #[test]
    fn many_channels_are_no_longer_an_axis_that_overflows() {
        assert_eq!(pad([1, 1_000_000, 100], [1, 1]).request().grid, Dim3::new(12_452, 1, 1));
    }

    #[test]
    fn rows_are_mirrored_at_their_ends() {
        let row = [1.0_f32, 2.0, 3.0, 4.0];
        assert_eq!(reference(&row, 3, 2), [4.0, 3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0]);
        assert_eq!(reference(&row, 0, 0), [1.0, 2.0, 3.0, 4.0]);
        assert!(reference(&row, 4, 0).is_empty());
    }

    #[test]
    fn unsupported_sizes_are_errors() {
        let error = |dims, pads| {
            ReflectionPad1d::new(dims, pads, ElementType::F16).expect_err("refused").to_string()
        };
        assert_eq!(
            error([1, 0, 4], [0, 0]),
            format!("channels is 0, the kernel takes 1 to {}", u64::MAX)
        );
        assert_eq!(error([1, 1, 0], [0, 0]), "width is 0, the kernel takes 1 to 536870912");
        assert_eq!(error([1, 1, 4], [4, 0]), "left pad is 4, the kernel takes 0 to 3");
        assert_eq!(error([1, 1, 4], [0, 4]), "right pad is 4, the kernel takes 0 to 3");
        assert!(error([1 << 40, 1 << 40, 4], [0, 0]).contains("more bytes than 64 bits can count"));
    }
}
