//! The sizes of a product, the types of its elements, and its operands.

use core::ffi::c_int;

use bytemuck::Pod;
use half::{bf16, f16};

/// A Rust type of a product's elements: `f16` or `bf16` of the crate `half`, or `f32`. Sums are f32.
///
/// Sealed: cuBLASLt writes the elements, so `T` must be the number that the product computes.
#[allow(private_bounds, reason = "sealed")]
pub trait ProductElement: Sealed + Pod {
    /// The name: `f16`, `bf16` or `f32`.
    const NAME: &'static str;
    /// The `cudaDataType_t`.
    #[doc(hidden)]
    const DATA_TYPE: c_int;
}

trait Sealed {}

impl Sealed for f16 {}
impl Sealed for bf16 {}
impl Sealed for f32 {}

impl ProductElement for f16 {
    const NAME: &'static str = "f16";
    const DATA_TYPE: c_int = 2;
}

impl ProductElement for bf16 {
    const NAME: &'static str = "bf16";
    const DATA_TYPE: c_int = 14;
}

impl ProductElement for f32 {
    const NAME: &'static str = "f32";
    const DATA_TYPE: c_int = 0;
}

/// The sizes of a product: `out = x * transposed(weight) + bias + residual`, all row-major and contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductShape {
    /// Rows of x, residual and out.
    pub rows: u64,
    /// Columns of x and weight.
    pub inner: u64,
    /// Rows of weight, elements of bias, columns of residual and out.
    pub columns: u64,
    /// Whether a bias is added to each row.
    pub bias: bool,
    /// Whether a residual is added.
    pub residual: bool,
}

/// The library counts in 32 bits.
pub(crate) const MAX_SIZE: u64 = 0x7fff_ffff;

/// The operands of a product in the order of [`OPERANDS`]: buffers or addresses.
pub(crate) type Operands<A> = [Option<A>; OPERANDS.len()];

/// The alignment of matrices in bytes, also where a chunk begins.
pub(crate) const ALIGNMENT: u64 = 16;

pub(crate) const OPERANDS: [&str; 6] = ["x", "weight", "bias", "residual", "out", "the workspace"];
