//! Checks the shape of a product against cuBLASLt's range, and the operands against the shape.

use super::error::ProductError;
use super::shape::{MAX_SIZE, ProductShape};

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
