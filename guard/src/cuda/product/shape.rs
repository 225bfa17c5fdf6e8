//! The sizes of a product.

use core::ffi::c_int;

/// The type of all matrices of a product. Sums are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductElement {
    /// IEEE 754 half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE 754 single precision.
    F32,
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
    /// The type of the elements.
    pub element: ProductElement,
    /// Whether a bias is added to each row.
    pub bias: bool,
    /// Whether a matrix is added.
    pub residual: bool,
}

impl ProductElement {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// The `cudaDataType_t`.
    pub(super) const fn number(self) -> c_int {
        match self {
            Self::F16 => 2,
            Self::Bf16 => 14,
            Self::F32 => R_32F,
        }
    }
}

/// `CUDA_R_32F`.
pub(super) const R_32F: c_int = 0;
