//! The element types of tensors.

use bytemuck::Pod;
use derive_more::Display;
#[cfg(feature = "cuda")]
use gridguard_pipeline::ProductElement;
use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[display("{}", self.name())]
pub enum ElementType {
    /// IEEE 754 half precision.
    F16,
    /// bfloat16: the upper half of an `f32`.
    Bf16,
    /// IEEE 754 single precision.
    F32,
}

impl ElementType {
    /// All element types.
    pub const ALL: [Self; 3] = [Self::F16, Self::Bf16, Self::F32];

    /// The name: `f16`, `bf16` or `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// The value of the macro `ELEMENT` in `cu/prelude.cu`.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::F16 => 0,
            Self::Bf16 => 1,
            Self::F32 => 2,
        }
    }

    /// The largest relative Frobenius error of a correct kernel that computes in f32 and rounds the output to this
    /// type once, if its module has no tolerance.
    ///
    /// Rounding is off by half a unit in the last place at most; the errors of f32 arithmetic, 2^-24
    /// each, average out.
    pub const fn rounding_error(self) -> f64 {
        match self {
            Self::F16 => 5e-4,
            Self::Bf16 => 4e-3,
            Self::F32 => 1e-6,
        }
    }
}

/// A Rust type of tensor elements: `f16`, `bf16` or `f32`.
///
/// With the feature `cuda`, an element is gridguard's `ProductElement`, which no other type can be: device code relies on
/// each type's size and layout.
pub trait Element: Plain + Multiplied + Into<f32> {
    /// Which one.
    const TYPE: ElementType;

    /// The value as f32, exactly.
    fn widen(self) -> f32 {
        self.into()
    }

    /// The nearest value, ties to even.
    fn narrow(value: f32) -> Self;
}

/// A number with the same bytes on host and device, for which every bit pattern is valid.
#[cfg(feature = "cuda")]
pub trait Plain:
    Pod + Send + Sync + cudarc::driver::DeviceRepr + cudarc::driver::ValidAsZeroBits
{
}
#[cfg(feature = "cuda")]
impl<T: Pod + Send + Sync + cudarc::driver::DeviceRepr + cudarc::driver::ValidAsZeroBits> Plain
    for T
{
}
/// A number for which every bit pattern is valid.
#[cfg(not(feature = "cuda"))]
pub trait Plain: Pod + Send + Sync {}
#[cfg(not(feature = "cuda"))]
impl<T: Pod + Send + Sync> Plain for T {}

/// An element of the products of cuBLASLt.
#[cfg(feature = "cuda")]
pub trait Multiplied: ProductElement {}
#[cfg(feature = "cuda")]
impl<T: ProductElement> Multiplied for T {}
/// An element of products; any, without a device.
#[cfg(not(feature = "cuda"))]
pub trait Multiplied {}
#[cfg(not(feature = "cuda"))]
impl<T> Multiplied for T {}

/// Checks at compile time that `T` has the size that device code expects.
#[cfg(feature = "cuda")]
pub(crate) const fn assert_size<T: Plain>(bytes: u64) {
    #[allow(clippy::as_conversions, reason = "a few bytes")]
    let size = size_of::<T>() as u64;
    assert!(size == bytes, "another size than in device code");
}

impl Element for f16 {
    const TYPE: ElementType = ElementType::F16;

    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::Bf16;

    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;

    fn narrow(value: f32) -> Self {
        value
    }
}

/// Elements as f64, exactly.
pub(crate) fn widened<T: Element>(elements: &[T]) -> impl ExactSizeIterator<Item = f64> + Clone {
    elements.iter().map(|x| f64::from(x.widen()))
}

/// The mean of a row. The count is exact: rows of 2^53 elements do not fit into memory.
pub(crate) fn mean(row: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = row.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
    sum / count
}

/// A number of elements as an index into memory. One that is too large for the host is out of range
/// of every slice, too.
pub(crate) fn to_usize(elements: u64) -> usize {
    usize::try_from(elements).unwrap_or(usize::MAX)
}

/// A length as u64.
pub(crate) fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
