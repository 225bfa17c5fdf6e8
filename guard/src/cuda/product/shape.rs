//! The sizes of a product, and the types of its elements.

use core::ffi::c_int;

use bytemuck::Pod;
use half::{bf16, f16};

use super::error::ProductError;

/// A Rust type of a product's elements: `f16` or `bf16` of the crate `half`, or `f32`. Sums are f32.
///
/// Sealed: cuBLASLt writes the elements, so `T` must be the number that the product computes.
#[allow(private_bounds, reason = "sealed")]
pub trait ProductElement: Sealed + Pod {
    /// The name: `f16`, `bf16` or `f32`.
    const NAME: &'static str;
}

pub(super) trait Sealed {
    /// The `cudaDataType_t`.
    const DATA_TYPE: c_int;
}

impl ProductElement for f16 {
    const NAME: &'static str = "f16";
}

impl ProductElement for bf16 {
    const NAME: &'static str = "bf16";
}

impl ProductElement for f32 {
    const NAME: &'static str = "f32";
}

impl Sealed for f16 {
    const DATA_TYPE: c_int = 2;
}

impl Sealed for bf16 {
    const DATA_TYPE: c_int = 14;
}

impl Sealed for f32 {
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

impl ProductShape {
    /// Checks the sizes against the library's range. The bytes of every matrix then fit u64.
    pub(super) fn check(&self) -> Result<(), ProductError> {
        let Self { rows, inner, columns, .. } = *self;
        for (size, given) in [("rows", rows), ("inner", inner), ("columns", columns)] {
            if !(1..=MAX_SIZE).contains(&given) {
                return Err(ProductError::Size { size, given, most: MAX_SIZE });
            }
        }
        Ok(())
    }

    /// Checks that a bias and a residual are given exactly if the product has them.
    pub(super) fn check_operands(&self, bias: bool, residual: bool) -> Result<(), ProductError> {
        for (tensor, given, declared) in
            [("bias", bias, self.bias), ("residual", residual, self.residual)]
        {
            let (given, expected) = match (given, declared) {
                (true, false) => ("given", "without"),
                (false, true) => ("not given", "with"),
                _ => continue,
            };
            return Err(ProductError::Operand { tensor, given, expected });
        }
        Ok(())
    }
}

/// The library counts in 32 bits.
pub(super) const MAX_SIZE: u64 = 0x7fff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_the_library_cannot_count_are_errors() {
        let checked = |[rows, inner, columns]: [u64; 3]| {
            ProductShape { rows, inner, columns, bias: true, residual: false }.check()
        };
        let refused = |sizes| checked(sizes).expect_err("refused").to_string();
        assert_eq!(refused([0, 1, 1]), "rows is 0, cuBLASLt takes 1 to 2147483647");
        assert_eq!(refused([1, 1 << 31, 1]), "inner is 2147483648, cuBLASLt takes 1 to 2147483647");
        assert_eq!(refused([1, 1, 0]), "columns is 0, cuBLASLt takes 1 to 2147483647");
        assert_eq!(checked([MAX_SIZE, 2, 3]), Ok(()));
    }

    #[test]
    fn a_bias_and_a_residual_are_given_exactly_if_the_product_has_them() {
        let shape = ProductShape { rows: 1, inner: 1, columns: 1, bias: true, residual: false };
        assert_eq!(shape.check_operands(true, false), Ok(()));
        let refused = |bias, residual| shape.check_operands(bias, residual).expect_err("refused");
        assert_eq!(
            refused(false, false).to_string(),
            "bias was not given, the product was made with it"
        );
        assert_eq!(
            refused(true, true).to_string(),
            "residual was given, the product was made without it"
        );
    }
}
