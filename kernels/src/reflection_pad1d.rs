//! Reflection padding of rows: `out[x] = input[x - left]`, mirrored at the first and the last element
//! of the row, which are not repeated.
//!
//! Audio models pad waveforms and features with it. With channels on grid y and the batch on z, 65,536
//! of either are one too many.

use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, LaunchRequest, Parameter};

use crate::element::{Element, ElementType};
use crate::error::KernelError;
use crate::operation::{Code, Operation, Sealed, U64, source};
use crate::size::{check_elements, check_size};
use crate::span::{Span, THREADS};

/// The widest row: a row of out is then less than three times as wide, and counts in 31 bits.
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
    /// `dims` is `[batch, channels, width]`; `pads` are the elements to put before and behind each
    /// row.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for no channels, a width outside 1 to 536,870,912, or a pad that is
    /// not less than the width; [`KernelError::TooLarge`] past 64 bits. An empty batch is allowed:
    /// there is nothing to do.
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
    #[must_use]
    pub const fn input_dims(&self) -> [u64; 3] {
        [self.batch, self.channels, self.width]
    }

    /// The shape of the output.
    #[must_use]
    pub const fn output_dims(&self) -> [u64; 3] {
        [self.batch, self.channels, self.left + self.width + self.right]
    }

    /// Elements before and behind each row.
    #[must_use]
    pub const fn pads(&self) -> [u64; 2] {
        [self.left, self.right]
    }

    /// Bytes that must move at least: the input read once, the output written once.
    #[must_use]
    pub fn least_bytes(&self) -> u128 {
        let elements = u128::from(self.input_item()) + u128::from(self.output_item());
        u128::from(self.batch) * elements * u128::from(self.element.bytes())
    }

    const fn input_item(&self) -> u64 {
        self.channels * self.width
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
    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let Span { items, tiles, steps } = self.span();
        Ok(Code {
            kernel: "reflection_pad1d",
            source: source!("reflection_pad1d.cu"),
            defines: vec![
                ("ELEMENT", self.element.number()),
                ("CHANNELS", self.channels),
                ("IN_WIDTH", self.width),
                ("LEFT", self.left),
                ("RIGHT", self.right),
                ("THREADS", THREADS),
                ("STEPS", steps),
                ("ITEMS", items),
                ("TILES", tiles),
            ],
            architecture_specific: false,
            parameters: vec![Parameter::Memory, Parameter::Memory, U64],
        })
    }

    fn request(&self) -> LaunchRequest {
        let span = self.span();
        let grid = Dim3::new(span.tiles, 1, span.groups(self.batch));
        LaunchRequest::new(grid, Dim3::new(THREADS, 1, 1))
    }

    fn batch(&self) -> BatchAxis {
        BatchAxis::new(Axis::Z, self.batch).items_per_block(self.span().items).foldable()
    }
}

#[cfg(feature = "profile")]
impl crate::tunable::Tunable for ReflectionPad1d {
    const KERNEL: &'static str = "reflection_pad1d";

    fn sizes(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("batch", self.batch),
            ("channels", self.channels),
            ("width", self.width),
            ("left", self.left),
            ("right", self.right),
        ]
    }

    fn dtypes(&self) -> String {
        self.element.to_string()
    }

    fn with_items(&self, batch: u64) -> Result<Self, KernelError> {
        let dims = [batch, self.channels, self.width];
        Self::new(dims, [self.left, self.right], self.element)
    }
}

#[cfg(feature = "cuda")]
mod device {
    use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};

    use super::{Element, KernelError, ReflectionPad1d};
    use crate::kernels::Prepared;
    use crate::tensor::{Tensor, TensorMut};

    impl Prepared<ReflectionPad1d> {
        /// Submits the launches to `stream` and answers how many there are; returns before they have
        /// run. `input` is `[batch, channels, width]`, `out` is `[batch, channels, left + width +
        /// right]`, contiguous.
        ///
        /// # Errors
        ///
        /// [`KernelError`] where a tensor has another type, shape or length, before anything is
        /// launched; [`KernelError::Launch`] where the driver refuses.
        #[track_caller]
        pub fn launch<T, I, O>(
            &self,
            stream: &CudaStream,
            input: Tensor<'_, I, 3>,
            out: TensorMut<'_, O, 3>,
        ) -> Result<u64, KernelError>
        where
            T: Element + DeviceRepr,
            I: DevicePtr<T>,
            O: DevicePtrMut<T>,
        {
            let operation = self.operation();
            let (from, to) = (operation.input_dims(), operation.output_dims());
            self.launch_items(stream, operation.element, ("input", input, from), (out, to))
        }
    }
}

/// One row with `left` elements before it and `right` behind it. Empty where a pad is not less than
/// the row.
#[must_use]
pub fn reference<T: Element>(row: &[T], left: usize, right: usize) -> Vec<f64> {
    if left.max(right) >= row.len() {
        return Vec::new();
    }
    // The element beside the edge is the first to be mirrored.
    let before = row.iter().skip(1).take(left).rev();
    let behind = row.iter().rev().skip(1).take(right);
    before.chain(row).chain(behind).map(|x| f64::from(x.widen())).collect()
}

/// The largest relative Frobenius error that a correct kernel has: none, elements are only copied.
#[must_use]
pub const fn tolerance(_: ElementType) -> f64 {
    0.0
}

#[cfg(test)]
mod tests {
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
    fn sizes_that_the_kernel_cannot_take_are_errors() {
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
        assert!(error([1 << 40, 1 << 40, 4], [0, 0]).contains("more elements than 64 bits count"));
        assert_eq!(pad([0, 3, 4], [1, 2]).least_bytes(), 0);
        assert_eq!(pad([2, 3, 4], [1, 2]).least_bytes(), 2 * 3 * (4 + 7) * 2);
    }
}
