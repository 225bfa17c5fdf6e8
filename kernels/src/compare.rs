//! Compares a whole output with a golden one on the device. The tuner checks the outputs of many candidates, which
//! may be gigabytes; copying them to the host would take longer than timing them.

use core::marker::PhantomData;

use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, LaunchRequest, Parameter};

use crate::deviation::Deviation;
use crate::element::{Element, ElementType, Plain, to_u64};
use crate::error::KernelError;
use crate::operation::{Code, Operation, U64, check_elements, source};
#[cfg(feature = "cuda")]
use {
    crate::element::assert_size,
    crate::launch::{Args, CudaStream, Prepared, Tensor},
    std::sync::Arc,
};

/// Threads of a block.
const THREADS: u64 = 256;
/// Elements of a thread. With few blocks, the atomic additions at their ends take no time.
const STEPS: u64 = 64;

/// A Rust type of elements that can be compared: every [`Element`], and `u32`.
pub trait Compared: Plain {
    /// The type of floating-point elements; of `u32`, the type of the same size.
    const SIZED_AS: ElementType;
    /// Whether the elements are integers, such as the columns that a sort returns.
    const IS_INTEGER: bool;

    /// The value as f64, exactly.
    fn value(self) -> f64;

    /// The nearest element to a value.
    fn nearest(value: f64) -> Self;

    /// Bits that are equal for equal elements.
    fn bits(self) -> u32;

    /// Two different elements that no correct kernel writes: NaNs, or the largest integers. Filling the
    /// output with them before a run detects elements that were not written.
    fn poisons() -> [Self; 2];
}

impl<T: Element> Compared for T {
    const SIZED_AS: ElementType = T::TYPE;
    const IS_INTEGER: bool = false;

    fn value(self) -> f64 {
        self.widen().into()
    }

    #[allow(clippy::as_conversions, reason = "rounds to nearest")]
    fn nearest(value: f64) -> Self {
        Self::narrow(value as f32)
    }

    fn bits(self) -> u32 {
        self.widen().to_bits()
    }

    fn poisons() -> [Self; 2] {
        [Self::narrow(f32::NAN), Self::narrow(-f32::NAN)]
    }
}

impl Compared for u32 {
    const SIZED_AS: ElementType = ElementType::F32;
    const IS_INTEGER: bool = true;

    fn value(self) -> f64 {
        self.into()
    }

    #[allow(clippy::as_conversions, reason = "f64 holds every u32")]
    fn nearest(value: f64) -> Self {
        value as Self
    }

    fn bits(self) -> u32 {
        self
    }

    fn poisons() -> [Self; 2] {
        [Self::MAX, Self::MAX - 1]
    }
}

/// Writes values, each rounded to the nearest element.
pub(crate) fn store<T: Compared>(values: impl IntoIterator<Item = f64>, out: &mut [T]) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = T::nearest(value);
    }
}

/// The comparison of two tensors of `elements` elements of `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Compare<T> {
    elements: u64,
    compared: PhantomData<T>,
}

impl<T: Compared> Compare<T> {
    /// The comparison of two tensors of `elements` elements.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`] if 64 bits cannot count the bytes. Zero elements are allowed.
    pub fn new(elements: u64) -> Result<Self, KernelError> {
        check_elements(&[elements])?;
        Ok(Self { elements, compared: PhantomData })
    }
}

impl<T: Compared> Operation for Compare<T> {
    const KERNEL: &'static str = "compare";
    const SIZES: &'static [&'static str] = &["elements"];
    const SOURCES: &'static [&'static str] = &[source!("compare.cu")];

    fn problem(&self) -> (Vec<u64>, String) {
        (
            vec![self.elements],
            if T::IS_INTEGER { "u32".to_owned() } else { T::SIZED_AS.to_string() },
        )
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let sums = Parameter::AlignedMemory { bytes: 8 };
        let code = Code::new::<Self>(
            source!("compare.cu"),
            T::SIZED_AS,
            vec![Parameter::Memory, Parameter::Memory, sums, U64],
        );
        Ok(code.with([("INTEGER", T::IS_INTEGER.into()), ("THREADS", THREADS), ("STEPS", STEPS)]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let blocks = Dim3::new(self.elements.div_ceil(THREADS * STEPS), 1, 1);
        let batch = BatchAxis::new(Axis::X, self.elements).items_per_block(THREADS * STEPS);
        (LaunchRequest::new(blocks, Dim3::new(THREADS, 1, 1)), batch)
    }
}

#[cfg(feature = "cuda")]
impl<T: Compared> Prepared<Compare<T>> {
    /// Compares `output` with `golden`, both `[elements]` and contiguous, and waits for the result.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another length, before anything is launched.
    /// [`KernelError::Launch`] if the driver rejects the launch. [`KernelError::Memory`] if the driver
    /// reports an error, also an error of an earlier kernel.
    #[track_caller]
    pub fn run(
        &self,
        stream: &Arc<CudaStream>,
        output: Tensor<'_, T, 1>,
        golden: Tensor<'_, T, 1>,
    ) -> Result<Difference, KernelError> {
        let elements = self.operation().elements;
        const { assert_size::<T>(T::SIZED_AS.bytes()) };
        let output = output.contiguous("output", [elements])?;
        let golden = golden.contiguous("golden", [elements])?;
        // As in `cu/compare.cu`: two of f64, two of u64.
        let mut sums = stream.clone_htod(&[0_u64; 4])?;
        let mut args = Args::new(stream);
        args.read_items(output, 1).read_items(golden, 1).write(&mut sums).length();
        self.submit(args)?;
        let mut bits = [0; 4];
        stream.memcpy_dtoh(&sums, &mut bits)?;
        stream.synchronize()?;
        let [squared_error, squared_norm, wrong, differing] = bits;
        let [squared_error, squared_norm] = [squared_error, squared_norm].map(f64::from_bits);
        let deviation = Deviation { squared_error, squared_norm, compared: elements, wrong };
        Ok(Difference { deviation, differing })
    }
}

/// The difference of two tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// The deviation from the golden tensor. Differing elements are wrong if either is not finite.
    pub deviation: Deviation,
    /// Elements that differ in any bit.
    pub differing: u64,
}

impl Difference {
    /// Whether the relative error is at most `tolerance`. A tolerance of zero requires equal bits.
    pub fn within(&self, tolerance: f64) -> bool {
        self.deviation.within(tolerance) && (tolerance > 0.0 || self.differing == 0)
    }
}

/// Compares two tensors on the host. If their lengths differ, every missing or surplus element counts as not finite.
pub fn reference<T: Compared>(output: &[T], golden: &[T]) -> Difference {
    let missing = to_u64(output.len().abs_diff(golden.len()));
    let compared = to_u64(output.len().max(golden.len()));
    let mut deviation = Deviation { compared, wrong: missing, ..Deviation::default() };
    let mut differing = missing;
    for (output, golden) in output.iter().zip(golden) {
        let differs = u64::from(output.bits() != golden.bits());
        differing += differs;
        let (value, expected) = (output.value(), golden.value());
        if value.is_finite() && expected.is_finite() {
            deviation.squared_error += (value - expected).powi(2);
            deviation.squared_norm += expected.powi(2);
        } else {
            deviation.wrong += differs;
        }
    }
    Difference { deviation, differing }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn a_block_takes_thousands_of_elements_and_the_last_may_have_fewer() {
        let compare = Compare::<f16>::new(16_385).expect("legal");
        assert_eq!(compare.request().grid, Dim3::new(2, 1, 1));
        assert_eq!(compare.batch().blocks(16_385), Some(2));
        assert!(Compare::<f16>::new(u64::MAX).is_err());
    }

    #[test]
    fn the_same_output_is_within_any_tolerance() {
        let output = [1.0_f32, -0.5, f32::INFINITY];
        let same = reference(&output, &output);
        assert!(
            same.within(0.0) && same.deviation.relative() == 0.0 && same.deviation.compared == 3
        );
    }

    #[test]
    fn an_error_is_relative_to_the_norm_of_the_golden_output() {
        let difference = reference(&[3.0_f32, 4.5], &[3.0, 4.0]);
        assert!((difference.deviation.relative() - 0.1).abs() < 1e-12);
        assert!(difference.within(0.11) && !difference.within(0.09));
        assert_eq!(difference.differing, 1);
    }

    #[test]
    fn an_element_that_was_never_written_is_within_no_tolerance() {
        let golden = [f16::ONE; 3];
        let difference = reference(&[f16::ONE, f16::NAN, f16::ONE], &golden);
        assert_eq!((difference.deviation.wrong, difference.differing), (1, 1));
        assert!(!difference.within(f64::MAX));
        assert!(!reference(&golden[..2], &golden).within(f64::MAX));
    }

    #[test]
    fn nothing_compared_is_within_no_tolerance() {
        assert!(!reference::<u32>(&[], &[]).within(f64::MAX));
    }

    #[test]
    fn without_tolerance_the_sign_of_zero_matters() {
        let difference = reference(&[-0.0_f32, 1.0], &[0.0, 1.0]);
        assert!(difference.deviation.relative() == 0.0 && !difference.within(0.0));
        assert!(!reference(&[3_u32, 4], &[3, 5]).within(0.0));
    }
}
