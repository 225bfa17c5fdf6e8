//! How far an output is from one that is known to be right, all of it, where it lies.
//!
//! A tuner runs many candidates over gigabytes: to fetch each output would take longer than to time
//! it.

use core::fmt;

use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, LaunchRequest, Parameter};

use crate::element::{Element, ElementType};
use crate::error::KernelError;
use crate::operation::{Code, Operation, Sealed, U64, source};
use crate::size::check_elements;

#[cfg(feature = "cuda")]
pub use device::Sums;

/// Threads of a block.
const THREADS: u64 = 256;
/// Elements of a thread: blocks are then few enough for the atomics at their ends not to count.
const STEPS: u64 = 64;

/// The type of elements that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ComparedType {
    /// Numbers with a fraction.
    Float(ElementType),
    /// Integers of 32 bits, such as the order that a sort gives.
    U32,
}

impl fmt::Display for ComparedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(element) => element.fmt(f),
            Self::U32 => f.write_str("u32"),
        }
    }
}

/// An element that can be compared.
pub trait Compared: Copy + Send + Sync + 'static {
    /// Its type.
    const COMPARED: ComparedType;

    /// The value, exactly.
    fn value(self) -> f64;

    /// Bits that are the same for the same element.
    fn bits(self) -> u32;
}

impl<T: Element> Compared for T {
    const COMPARED: ComparedType = ComparedType::Float(T::TYPE);

    fn value(self) -> f64 {
        self.widen().into()
    }

    fn bits(self) -> u32 {
        self.widen().to_bits()
    }
}

impl Compared for u32 {
    const COMPARED: ComparedType = ComparedType::U32;

    fn value(self) -> f64 {
        self.into()
    }

    fn bits(self) -> u32 {
        self
    }
}

/// The comparison of two tensors of `elements` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Compare {
    elements: u64,
    compared: ComparedType,
}

impl Compare {
    /// The comparison of two tensors of `elements` elements.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`] past 64 bits. Zero elements are allowed: there is nothing to do.
    pub fn new(elements: u64, compared: ComparedType) -> Result<Self, KernelError> {
        check_elements(&[elements])?;
        Ok(Self { elements, compared })
    }
}

impl Sealed for Compare {}

impl Operation for Compare {
    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let (element, integer) = match self.compared {
            ComparedType::Float(element) => (element, false),
            ComparedType::U32 => (ElementType::F32, true),
        };
        let sums = Parameter::AlignedMemory { bytes: 8 };
        Ok(Code {
            kernel: "compare",
            source: source!("compare.cu"),
            defines: vec![
                ("ELEMENT", element.number()),
                ("INTEGER", integer.into()),
                ("THREADS", THREADS),
                ("STEPS", STEPS),
            ],
            architecture_specific: false,
            parameters: vec![Parameter::Memory, Parameter::Memory, sums, U64],
        })
    }

    fn request(&self) -> LaunchRequest {
        let blocks = self.elements.div_ceil(THREADS * STEPS);
        LaunchRequest::new(Dim3::new(blocks, 1, 1), Dim3::new(THREADS, 1, 1))
    }

    fn batch(&self) -> BatchAxis {
        BatchAxis::new(Axis::X, self.elements).items_per_block(THREADS * STEPS)
    }
}

#[cfg(feature = "cuda")]
mod device {
    use std::sync::Arc;

    use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError};
    use gridguard::cuda::Args;

    use super::{Compare, Compared, Difference, KernelError};
    use crate::kernels::Prepared;
    use crate::tensor::{Tensor, check_contiguous};

    /// What comparisons add up on the device.
    #[derive(Debug)]
    pub struct Sums {
        /// As the kernel has them: two of f64, two of u64.
        bits: CudaSlice<u64>,
        compared: u64,
    }

    impl Sums {
        /// Nothing compared yet, on the device of `stream`.
        ///
        /// # Errors
        ///
        /// The driver's, where it has no memory.
        pub fn new(stream: &Arc<CudaStream>) -> Result<Self, DriverError> {
            Ok(Self { bits: stream.clone_htod(&[0; 4])?, compared: 0 })
        }

        /// Waits for what was submitted to `stream` and says what was found.
        ///
        /// # Errors
        ///
        /// The driver's, also where a kernel before has failed.
        pub fn read(&self, stream: &Arc<CudaStream>) -> Result<Difference, DriverError> {
            let mut bits = [0; 4];
            stream.memcpy_dtoh(&self.bits, &mut bits)?;
            stream.synchronize()?;
            let [squared_error, squared_norm, not_finite, differing] = bits;
            Ok(Difference {
                squared_error: f64::from_bits(squared_error),
                squared_norm: f64::from_bits(squared_norm),
                not_finite,
                differing,
                compared: self.compared,
            })
        }
    }

    impl Prepared<Compare> {
        /// Submits the launches to `stream` and answers how many there are; returns before they have
        /// run. output and golden are `[elements]`, contiguous; what is found is added to `sums`.
        ///
        /// # Errors
        ///
        /// [`KernelError`] where a tensor has another type or length, before anything is launched;
        /// [`KernelError::Launch`] where the driver refuses.
        #[track_caller]
        pub fn launch<T, X, G>(
            &self,
            stream: &CudaStream,
            output: Tensor<'_, X, 1>,
            golden: Tensor<'_, G, 1>,
            sums: &mut Sums,
        ) -> Result<u64, KernelError>
        where
            T: Compared + DeviceRepr,
            X: DevicePtr<T>,
            G: DevicePtr<T>,
        {
            let Compare { elements, compared } = *self.operation();
            if T::COMPARED != compared {
                return Err(KernelError::ComparedType { given: T::COMPARED, expected: compared });
            }
            check_contiguous("output", output.memory, &output.extent, [elements])?;
            check_contiguous("golden", golden.memory, &golden.extent, [elements])?;
            sums.compared += elements;
            let mut args = Args::new(stream);
            args.read_items(output.memory, 1)
                .read_items(golden.memory, 1)
                .write(&mut sums.bits)
                .length();
            self.submit(args)
        }
    }
}

/// What a comparison finds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    squared_error: f64,
    /// Of the golden elements.
    squared_norm: f64,
    /// Elements that differ where one is no finite number.
    not_finite: u64,
    differing: u64,
    compared: u64,
}

impl Difference {
    /// The relative Frobenius error; infinite where an element that should be finite is not, or
    /// nothing was compared.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.not_finite > 0 || self.compared == 0 {
            return f64::INFINITY;
        }
        if self.squared_error == 0.0 {
            return 0.0;
        }
        (self.squared_error / self.squared_norm).sqrt()
    }

    /// Whether the output is as near as `tolerance` asks; the same bit for bit where it is zero. A
    /// NaN never is near.
    #[must_use]
    pub fn within(&self, tolerance: f64) -> bool {
        self.relative() <= tolerance && (tolerance > 0.0 || self.differing == 0)
    }

    /// Elements that differ where one of the two is no finite number.
    #[must_use]
    pub const fn not_finite(&self) -> u64 {
        self.not_finite
    }

    /// Elements that differ in any bit.
    #[must_use]
    pub const fn differing(&self) -> u64 {
        self.differing
    }

    /// Elements compared.
    #[must_use]
    pub const fn compared(&self) -> u64 {
        self.compared
    }
}

/// The comparison on the host. A length that differs counts every missing or surplus element as one
/// that is not finite.
#[must_use]
pub fn reference<T: Compared>(output: &[T], golden: &[T]) -> Difference {
    let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
    let missing = count(output.len().abs_diff(golden.len()));
    let mut difference =
        Difference { not_finite: missing, differing: missing, ..Difference::default() };
    difference.compared = count(output.len().max(golden.len()));
    for (output, golden) in output.iter().zip(golden) {
        let differs = u64::from(output.bits() != golden.bits());
        difference.differing += differs;
        let (value, expected) = (output.value(), golden.value());
        if value.is_finite() && expected.is_finite() {
            difference.squared_error += (value - expected).powi(2);
            difference.squared_norm += expected.powi(2);
        } else {
            difference.not_finite += differs;
        }
    }
    difference
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn a_block_takes_thousands_of_elements_and_the_last_may_have_fewer() {
        let compared = ComparedType::Float(ElementType::F16);
        let compare = Compare::new(16_385, compared).expect("legal");
        assert_eq!(compare.request().grid, Dim3::new(2, 1, 1));
        assert_eq!(compare.batch().blocks(16_385), Some(2));
        assert!(Compare::new(u64::MAX, compared).is_err());
    }

    #[test]
    fn the_same_output_is_within_any_tolerance() {
        let output = [1.0_f32, -0.5, f32::INFINITY];
        let same = reference(&output, &output);
        assert!(same.within(0.0) && same.relative() == 0.0 && same.compared() == 3);
    }

    #[test]
    fn an_error_is_relative_to_the_norm_of_the_golden_output() {
        let difference = reference(&[3.0_f32, 4.5], &[3.0, 4.0]);
        assert!((difference.relative() - 0.1).abs() < 1e-12);
        assert!(difference.within(0.11) && !difference.within(0.09));
        assert_eq!(difference.differing(), 1);
    }

    #[test]
    fn an_element_that_was_never_written_is_within_no_tolerance() {
        let golden = [f16::ONE; 3];
        let difference = reference(&[f16::ONE, f16::NAN, f16::ONE], &golden);
        assert_eq!((difference.not_finite(), difference.differing()), (1, 1));
        assert!(!difference.within(f64::MAX));
        assert!(!reference(&golden[..2], &golden).within(f64::MAX));
    }

    #[test]
    fn nothing_compared_is_within_no_tolerance() {
        assert!(!reference::<u32>(&[], &[]).within(f64::MAX));
    }

    #[test]
    fn without_tolerance_not_even_the_sign_of_zero_may_differ() {
        let difference = reference(&[-0.0_f32, 1.0], &[0.0, 1.0]);
        assert!(difference.relative() == 0.0 && !difference.within(0.0));
        assert!(!reference(&[3_u32, 4], &[3, 5]).within(0.0));
    }
}
