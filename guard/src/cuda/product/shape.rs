//! The sizes of a product, and the types of its elements.

use core::ffi::c_int;
use core::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

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

/// A Rust type of a product's elements: `f16` or `bf16` of the crate `half`, or `f32`.
///
/// Sealed: cuBLASLt writes the elements, so `T` must be the number that the product computes.
#[allow(private_bounds, reason = "sealed")]
pub trait ProductNumber: Sealed + Pod {
    /// Which one.
    const ELEMENT: ProductElement;
}

trait Sealed {}

impl Sealed for f16 {}
impl Sealed for bf16 {}
impl Sealed for f32 {}

impl ProductNumber for f16 {
    const ELEMENT: ProductElement = ProductElement::F16;
}

impl ProductNumber for bf16 {
    const ELEMENT: ProductElement = ProductElement::Bf16;
}

impl ProductNumber for f32 {
    const ELEMENT: ProductElement = ProductElement::F32;
}

/// The sizes of a product: `out = x * transposed(weight) + bias + residual`, all row-major and contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductShape {
    pub(super) rows: u64,
    pub(super) inner: u64,
    pub(super) columns: u64,
    pub(super) element: ProductElement,
    pub(super) bias: bool,
    pub(super) residual: bool,
}

impl ProductShape {
    /// The same with a bias of `[columns]`, which is added to each row.
    #[must_use]
    pub const fn with_bias(self) -> Self {
        Self { bias: true, ..self }
    }

    /// The same with a residual of `[rows, columns]`, which is added.
    #[must_use]
    pub const fn with_residual(self) -> Self {
        Self { residual: true, ..self }
    }

    /// Rows of x, residual and out.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Columns of x and weight.
    #[must_use]
    pub const fn inner(&self) -> u64 {
        self.inner
    }

    /// Rows of weight, elements of bias, columns of residual and out.
    #[must_use]
    pub const fn columns(&self) -> u64 {
        self.columns
    }

    /// The type of the elements.
    #[must_use]
    pub const fn element(&self) -> ProductElement {
        self.element
    }

    /// Whether a bias is added to each row.
    #[must_use]
    pub const fn has_bias(&self) -> bool {
        self.bias
    }

    /// Whether a residual is added.
    #[must_use]
    pub const fn has_residual(&self) -> bool {
        self.residual
    }
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

    /// The name: `f16`, `bf16` or `f32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
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

impl fmt::Display for ProductElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `CUDA_R_32F`.
pub(super) const R_32F: c_int = 0;
