//! Nearest-neighbour resizing of planes, as PyTorch's `interpolate(mode="nearest")`.
//!
//! Decoders of image and video models double their feature maps with it. Planes (batch times channels)
//! are on grid z, which 65,536 groups of blocks overflow.
//!
//! Along each axis, output position `i` reads input position `min(floor(i * scale), input - 1)`, where
//! `scale` is `input / output`; quotient and product are rounded to f32. PyTorch computes the same when
//! it is given the output's size, so that results agree bit for bit.

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::bench::spec::{Input, KernelSpec, SizedProblem, TensorSpec};
use crate::blocks::{Span, THREADS, vector_elements};
use crate::element::{Element, ElementType};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::{CudaStream, Prepared, Tensor, TensorMut};
use crate::operation::{
    Code, Operation, Sealed, U64, VECTOR_BYTES, check_elements, check_size, memory, source,
};

const SOURCE: &str = source!("upsample_nearest2d.cu");

/// The most rows or columns: f32 represents all smaller integers.
const MAX_SIZE: u64 = 1 << 24;

/// A number of planes, each resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpsampleNearest2d {
    planes: u64,
    /// Height and width.
    input: [u64; 2],
    output: [u64; 2],
    element: ElementType,
}

impl UpsampleNearest2d {
    /// Resizes `[planes, height, width]` to another height and width, larger or smaller. `input` and
    /// `output` are height and width.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for a height or width outside 1 to 16,777,216;
    /// [`KernelError::TooLarge`] if 64 bits cannot count the bytes. Zero planes are allowed.
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
    pub const fn input_dims(&self) -> [u64; 3] {
        let [height, width] = self.input;
        [self.planes, height, width]
    }

    /// The shape of the output.
    pub const fn output_dims(&self) -> [u64; 3] {
        let [height, width] = self.output;
        [self.planes, height, width]
    }

    /// Elements of an input and of an output plane.
    const fn plane_elements(&self) -> [u64; 2] {
        let ([in_height, in_width], [out_height, out_width]) = (self.input, self.output);
        [in_height * in_width, out_height * out_width]
    }

    /// Whether output rows begin at multiples of 16 bytes.
    const fn is_aligned(&self) -> bool {
        let [_, width] = self.output;
        width.is_multiple_of(vector_elements(self.element))
    }

    /// Output columns for each input column, if one load gives the input of a vector of output;
    /// else zero.
    fn factor(&self) -> u64 {
        let ([_, input], [_, output]) = (self.input, self.output);
        let factor = output / input;
        // The scale is then a power of two, which f32 represents exactly.
        let exact = factor.is_power_of_two() && input * factor == output;
        let loads = exact && self.is_aligned() && factor <= vector_elements(self.element);
        if loads { factor } else { 0 }
    }

    fn span(&self) -> Span {
        let [_, output] = self.plane_elements();
        Span::new(output, self.element, self.is_aligned())
    }

    /// The alignment of input and output that loads and stores need.
    fn alignments(&self) -> [Parameter; 2] {
        let aligned = |bytes| Parameter::AlignedMemory { bytes };
        let input = VECTOR_BYTES.checked_div(self.factor()).map_or(Parameter::Memory, aligned);
        [input, memory(self.is_aligned())]
    }
}

impl Sealed for UpsampleNearest2d {}

impl Operation for UpsampleNearest2d {
    const KERNEL: &'static str = "upsample_nearest2d";
    const SIZES: &'static [&'static str] =
        &["planes", "height", "width", "out_height", "out_width"];

    fn problem(&self) -> (Vec<u64>, String) {
        ([&[self.planes][..], &self.input, &self.output].concat(), self.element.to_string())
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let ([in_height, in_width], [out_height, out_width]) = (self.input, self.output);
        let Span { items, tiles, steps } = self.span();
        let [input, output] = self.alignments();
        let code = Code::new::<Self>(SOURCE, self.element, vec![input, output, U64]);
        Ok(code.with([
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
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        self.span().grid(self.planes)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<UpsampleNearest2d> {
    /// Submits the launches to `stream` and returns their number without waiting for them. `input` is
    /// `[planes, height, width]`, `out` the same with the output's height and width, both contiguous.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another type, shape or length, before anything is launched;
    /// [`KernelError::Launch`] if memory is misaligned or the driver rejects the launch.
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

impl KernelSpec for UpsampleNearest2d {
    type Output<T: Element> = T;

    const SOURCES: &'static [&'static str] = &[SOURCE];
    const SHIPPED: &'static str = "f16 65536x32x32x64x64 131072x32x32x64x64 8192x64x64x128x128 \
        262144x16x16x32x32 32768x40x64x80x128 16384x40x64x80x128 524288x8x8x16x16 \
        1024x256x256x512x512 bf16 65536x32x32x64x64 f32 65536x32x32x64x64";
    const SMALL: &'static str = "f32 256x32x32x64x64";

    fn build(problem: &SizedProblem, _: &DeviceLimits) -> Result<Self, KernelError> {
        let [planes, height, width, out_height, out_width] = problem.sizes;
        Self::new(planes, [height, width], [out_height, out_width], problem.element)
    }

    fn tensors(&self) -> TensorSpec {
        let [input, output] = self.plane_elements();
        // Elements are only copied.
        TensorSpec::new([Input::Items(input)], output, 0.0)
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        reference(inputs[0], self.input, self.output)
    }
}

/// One plane: `input` has the elements of the first height and width, the result those of the second.
/// Empty if the input is too short or a size is larger than memory.
pub fn reference<T: Element>(input: &[T], input_dims: [u64; 2], output_dims: [u64; 2]) -> Vec<f64> {
    let ([in_height, in_width], [out_height, out_width]) = (input_dims, output_dims);
    let columns: Vec<u64> =
        (0..out_width).map(|column| nearest(column, in_width, out_width)).collect();
    let positions = (0..out_height).flat_map(|row| {
        let row = nearest(row, in_height, out_height).saturating_mul(in_width);
        columns.iter().map(move |column| row.saturating_add(*column))
    });
    let element = |position| input.get(usize::try_from(position).ok()?);
    positions
        .map(|position| element(position).map(|x| f64::from(x.widen())))
        .collect::<Option<_>>()
        .unwrap_or_default()
}

/// The input position for an output position, for sizes of up to 2^24.
#[allow(clippy::as_conversions, reason = "f32 holds all integers to 2^24, and the floor is one")]
fn nearest(position: u64, input: u64, output: u64) -> u64 {
    let scale = input as f32 / output as f32;
    ((position as f32 * scale).floor() as u64).min(input.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use gridguard::Dim3;

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
        // 128 x 128 x 2 bytes need two blocks, 32 x 32 x 2 bytes an eighth of a block.
        let large = double(65_536, 64, ElementType::F16);
        assert_eq!(large.request().grid, Dim3::new(2, 1, 65_536));
        assert_eq!(large.batch().blocks(65_536), Some(65_536));
        let small = double(524_281, 16, ElementType::F16);
        assert_eq!(small.request().grid, Dim3::new(1, 1, 65_536));
        assert_eq!(small.batch().blocks(524_281), Some(65_536));
    }

    #[test]
    fn vectors_are_loaded_if_a_power_of_two_divides_them() {
        let factor = |input, output| {
            let operation = UpsampleNearest2d::new(1, [9, input], [9, output], ElementType::F16);
            defined(&operation.expect("legal"), "FACTOR")
        };
        assert_eq!([factor(16, 16), factor(16, 32), factor(10, 40), factor(3, 24)], [1, 2, 4, 8]);
        // A factor of 3, a row of partial vectors, a factor above the elements of a vector, a smaller
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
    fn each_element_of_a_doubled_plane_appears_four_times() {
        let out = reference(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2], [4, 4]);
        let expected = [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]];
        assert_eq!(out, expected.as_flattened().iter().copied().map(f64::from).collect::<Vec<_>>());
    }

    #[test]
    fn positions_follow_f32_arithmetic() {
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
    fn unsupported_sizes_are_errors() {
        let new = |planes, size| UpsampleNearest2d::new(planes, size, [4, 4], ElementType::F16);
        assert!(new(1, [0, 4]).is_err());
        assert!(new(1, [4, (1 << 24) + 1]).is_err());
        assert!(new(1 << 60, [4, 4]).is_err());
        assert!(new(0, [4, 4]).is_ok(), "nothing to do");
    }
}
