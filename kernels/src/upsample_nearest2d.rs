//! Nearest-neighbour resizing of planes: every output element is the input element whose place is
//! nearest from below.
//!
//! Decoders of image and video models double their feature maps with it. With planes (batch times
//! channels) on grid z, 65,536 blocks of them are one too many.
//!
//! Along each axis, output place `i` shows input place `min(floor(i * scale), input - 1)`, where
//! `scale` is `input / output`; quotient and product are rounded to f32. That is what PyTorch's
//! `interpolate(mode="nearest")` computes when it is given the output's size, so that results agree
//! bit for bit.

use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, LaunchRequest, Parameter};

use crate::element::{Element, ElementType};
use crate::error::KernelError;
use crate::operation::{Code, Operation, Sealed, U64, memory, source};
use crate::size::{check_elements, check_size};
use crate::span::{Span, THREADS, vector_elements};

/// The most rows or columns: f32 counts so far without a gap.
const MAX_SIZE: u64 = 1 << 24;

/// Each of a number of planes, resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpsampleNearest2d {
    planes: u64,
    /// Height and width.
    input: [u64; 2],
    output: [u64; 2],
    element: ElementType,
}

impl UpsampleNearest2d {
    /// `[planes, height, width]` resized to another height and width, larger or smaller: `input`
    /// and `output` are height and width.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for a height or width outside 1 to 16,777,216;
    /// [`KernelError::TooLarge`] past 64 bits. Zero planes are allowed: there is nothing to do.
    pub fn new(
        planes: u64,
        input: [u64; 2],
        output: [u64; 2],
        element: ElementType,
    ) -> Result<Self, KernelError> {
        let ([in_height, in_width], [out_height, out_width]) = (input, output);
        check_size("input height", in_height, 1..=MAX_SIZE)?;
        check_size("input width", in_width, 1..=MAX_SIZE)?;
        check_size("output height", out_height, 1..=MAX_SIZE)?;
        check_size("output width", out_width, 1..=MAX_SIZE)?;
        check_elements(&[planes, in_height, in_width])?;
        check_elements(&[planes, out_height, out_width])?;
        Ok(Self { planes, input, output, element })
    }

    /// The shape of the input.
    #[must_use]
    pub const fn input_dims(&self) -> [u64; 3] {
        let [height, width] = self.input;
        [self.planes, height, width]
    }

    /// The shape of the output.
    #[must_use]
    pub const fn output_dims(&self) -> [u64; 3] {
        let [height, width] = self.output;
        [self.planes, height, width]
    }

    /// Bytes that must move at least: the input read once, the output written once.
    #[must_use]
    pub fn least_bytes(&self) -> u128 {
        let elements = u128::from(self.input_plane()) + u128::from(self.output_plane());
        u128::from(self.planes) * elements * u128::from(self.element.bytes())
    }

    const fn input_plane(&self) -> u64 {
        let [height, width] = self.input;
        height * width
    }

    const fn output_plane(&self) -> u64 {
        let [height, width] = self.output;
        height * width
    }

    /// Whether output rows begin at multiples of 16 bytes.
    const fn is_aligned(&self) -> bool {
        let [_, width] = self.output;
        width.is_multiple_of(vector_elements(self.element))
    }

    /// Output columns of an input column, where a vector of output is one load of input; else zero.
    fn factor(&self) -> u64 {
        let ([_, input], [_, output]) = (self.input, self.output);
        let factor = output / input;
        // The scale is then a power of two, and f32 exact.
        let exact = factor.is_power_of_two() && input * factor == output;
        let loads = exact && self.is_aligned() && factor <= vector_elements(self.element);
        if loads { factor } else { 0 }
    }

    fn span(&self) -> Span {
        Span::new(self.output_plane(), self.element, self.is_aligned())
    }

    /// How input and output must be aligned for loads and stores of several elements.
    fn alignments(&self) -> [Parameter; 2] {
        let whole = |bytes| Parameter::AlignedMemory { bytes };
        let input = 16_u64.checked_div(self.factor()).map_or(Parameter::Memory, whole);
        [input, memory(self.is_aligned())]
    }
}

impl Sealed for UpsampleNearest2d {}

impl Operation for UpsampleNearest2d {
    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let ([in_height, in_width], [out_height, out_width]) = (self.input, self.output);
        let Span { items, tiles, steps } = self.span();
        let [input, output] = self.alignments();
        Ok(Code {
            kernel: "upsample_nearest2d",
            source: source!("upsample_nearest2d.cu"),
            defines: vec![
                ("ELEMENT", self.element.number()),
                ("IN_HEIGHT", in_height),
                ("IN_WIDTH", in_width),
                ("OUT_HEIGHT", out_height),
                ("OUT_WIDTH", out_width),
                ("THREADS", THREADS),
                ("STEPS", steps),
                ("PLANES", items),
                ("TILES", tiles),
                ("ALIGNED", self.is_aligned().into()),
                ("FACTOR", self.factor()),
            ],
            architecture_specific: false,
            parameters: vec![input, output, U64],
        })
    }

    fn request(&self) -> LaunchRequest {
        let span = self.span();
        let grid = Dim3::new(span.tiles, 1, span.groups(self.planes));
        LaunchRequest::new(grid, Dim3::new(THREADS, 1, 1))
    }

    fn batch(&self) -> BatchAxis {
        BatchAxis::new(Axis::Z, self.planes).items_per_block(self.span().items).foldable()
    }
}

#[cfg(feature = "profile")]
impl crate::tunable::Tunable for UpsampleNearest2d {
    const KERNEL: &'static str = "upsample_nearest2d";

    fn sizes(&self) -> Vec<(&'static str, u64)> {
        let ([height, width], [out_height, out_width]) = (self.input, self.output);
        vec![
            ("planes", self.planes),
            ("height", height),
            ("width", width),
            ("out_height", out_height),
            ("out_width", out_width),
        ]
    }

    fn dtypes(&self) -> String {
        self.element.to_string()
    }

    fn with_items(&self, planes: u64) -> Result<Self, KernelError> {
        Self::new(planes, self.input, self.output, self.element)
    }
}

#[cfg(feature = "cuda")]
mod device {
    use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};

    use super::{Element, KernelError, UpsampleNearest2d};
    use crate::kernels::Prepared;
    use crate::tensor::{Tensor, TensorMut};

    impl Prepared<UpsampleNearest2d> {
        /// Submits the launches to `stream` and answers how many there are; returns before they have
        /// run. `input` is `[planes, height, width]`, `out` likewise with the output's height and
        /// width, contiguous.
        ///
        /// # Errors
        ///
        /// [`KernelError`] where a tensor has another type, shape or length, before anything is
        /// launched; [`KernelError::Launch`] where one is not aligned or the driver refuses.
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

/// One plane: `input` has the elements of the first height and width, the result those of the
/// second. Empty where the input has fewer elements than that, or a size is beyond memory.
#[must_use]
pub fn reference<T: Element>(input: &[T], input_dims: [u64; 2], output_dims: [u64; 2]) -> Vec<f64> {
    let ([in_height, in_width], [out_height, out_width]) = (input_dims, output_dims);
    let columns: Vec<u64> =
        (0..out_width).map(|column| nearest(column, in_width, out_width)).collect();
    let places = (0..out_height).flat_map(|row| {
        let row = nearest(row, in_height, out_height) * in_width;
        columns.iter().map(move |column| row + column)
    });
    let element = |place| input.get(usize::try_from(place).ok()?);
    places
        .map(|place| element(place).map(|x| f64::from(x.widen())))
        .collect::<Option<_>>()
        .unwrap_or_default()
}

/// The input place that output place `place` shows; sizes of up to 2^24.
#[allow(clippy::as_conversions, reason = "f32 holds all integers to 2^24, and the floor is one")]
fn nearest(place: u64, input: u64, output: u64) -> u64 {
    let scale = input as f32 / output as f32;
    ((place as f32 * scale).floor() as u64).min(input.saturating_sub(1))
}

/// The largest relative Frobenius error that a correct kernel has: none, elements are only copied.
#[must_use]
pub const fn tolerance(_: ElementType) -> f64 {
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn double(planes: u64, size: u64, element: ElementType) -> UpsampleNearest2d {
        UpsampleNearest2d::new(planes, [size; 2], [2 * size; 2], element).expect("legal")
    }

    fn defined(operation: &UpsampleNearest2d, name: &str) -> u64 {
        let code = operation.code(&DeviceLimits::any_device()).expect("any device");
        code.defines.iter().find(|(known, _)| *known == name).expect("defined").1
    }

    #[test]
    fn planes_on_z_overflow_from_65_536_groups_on() {
        // 128 x 128 x 2 bytes take two blocks, 32 x 32 x 2 bytes the eighth part of one.
        let large = double(65_536, 64, ElementType::F16);
        assert_eq!(large.request().grid, Dim3::new(2, 1, 65_536));
        assert_eq!(large.batch().blocks(65_536), Some(65_536));
        let small = double(524_281, 16, ElementType::F16);
        assert_eq!(small.request().grid, Dim3::new(1, 1, 65_536));
        assert_eq!(small.batch().blocks(524_281), Some(65_536));
    }

    #[test]
    fn whole_vectors_are_loaded_where_a_power_of_two_divides_them() {
        let factor = |input, output| {
            let operation = UpsampleNearest2d::new(1, [9, input], [9, output], ElementType::F16);
            defined(&operation.expect("legal"), "FACTOR")
        };
        assert_eq!([factor(16, 16), factor(16, 32), factor(10, 40), factor(3, 24)], [1, 2, 4, 8]);
        // Another factor, a row of no whole vectors, more than a vector of one element, a smaller
        // output.
        assert_eq!([factor(8, 24), factor(6, 12), factor(8, 128), factor(16, 8)], [0; 4]);
    }

    #[test]
    fn memory_is_aligned_as_the_loads_and_stores_need() {
        let parameters = |input, output, element| {
            let operation = UpsampleNearest2d::new(1, [1, input], [1, output], element);
            operation.expect("legal").alignments()
        };
        let at = |bytes| Parameter::AlignedMemory { bytes };
        assert_eq!(parameters(16, 16, ElementType::F16), [at(16), at(16)]);
        assert_eq!(parameters(16, 32, ElementType::F32), [at(8), at(16)]);
        assert_eq!(parameters(16, 64, ElementType::F32), [at(4), at(16)]);
        assert_eq!(parameters(3, 24, ElementType::F16), [at(2), at(16)]);
        assert_eq!(parameters(5, 24, ElementType::F16), [Parameter::Memory, at(16)]);
        assert_eq!(parameters(5, 23, ElementType::F16), [Parameter::Memory; 2]);
    }

    #[test]
    fn each_element_of_a_doubled_plane_stands_four_times() {
        let out = reference(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2], [4, 4]);
        let expected = [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]];
        assert_eq!(out, expected.as_flattened().iter().copied().map(f64::from).collect::<Vec<_>>());
    }

    #[test]
    fn places_are_those_of_f32_arithmetic() {
        let places = |input, output| -> Vec<u64> {
            (0..output).map(|place| nearest(place, input, output)).collect()
        };
        assert_eq!(places(3, 5), [0, 0, 1, 1, 2]);
        assert_eq!(places(5, 3), [0, 1, 3]);
        // 1/41 in f32 is less than 1/41, and 41 times that rounds to less than one.
        assert_eq!((nearest(41, 10, 410), nearest(42, 10, 410)), (0, 1));
    }

    #[test]
    fn an_input_that_is_too_short_has_no_result() {
        assert!(reference(&[1.0_f32; 3], [2, 2], [4, 4]).is_empty());
    }

    #[test]
    fn sizes_that_the_kernel_cannot_take_are_errors() {
        let new = |planes, size| UpsampleNearest2d::new(planes, size, [4, 4], ElementType::F16);
        assert!(new(1, [0, 4]).is_err());
        assert!(new(1, [4, (1 << 24) + 1]).is_err());
        assert!(new(1 << 60, [4, 4]).is_err());
        assert_eq!(new(0, [4, 4]).expect("nothing to do").least_bytes(), 0);
        assert_eq!(new(3, [2, 2]).expect("legal").least_bytes(), 3 * (4 + 16) * 2);
    }
}
