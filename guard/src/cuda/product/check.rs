//! What a product's shape is checked for, when it is made and when it gets its operands.

use super::error::ProductError;
use super::shape::{ProductElement, ProductNumber, ProductShape};

impl ProductShape {
    /// The product of x, `[rows, inner]`, and weight, `[columns, inner]`, without bias and residual.
    ///
    /// # Errors
    ///
    /// [`ProductError::Size`] if a size is 0, or above 2^31 - 1: cuBLASLt counts in 32 bits.
    pub fn new(
        rows: u64,
        inner: u64,
        columns: u64,
        element: ProductElement,
    ) -> Result<Self, ProductError> {
        // Then 64 bits count the bytes of every matrix.
        for (size, given) in [("rows", rows), ("inner", inner), ("columns", columns)] {
            if !(1..=MAX_SIZE).contains(&given) {
                return Err(ProductError::Size { size, given, most: MAX_SIZE });
            }
        }
        Ok(Self { rows, inner, columns, element, bias: false, residual: false })
    }

    /// The same with another number of rows.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn with_rows(self, rows: u64) -> Result<Self, ProductError> {
        let Self { inner, columns, element, bias, residual, .. } = self;
        Ok(Self { bias, residual, ..Self::new(rows, inner, columns, element)? })
    }

    /// Checks that memory has the product's elements.
    pub(super) fn check_element<T: ProductNumber>(&self) -> Result<(), ProductError> {
        let (given, expected) = (T::ELEMENT, self.element);
        if given != expected {
            return Err(ProductError::Element { given, expected });
        }
        Ok(())
    }

    /// Checks that a bias and a residual are given exactly if there are some.
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
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn sizes_that_the_library_cannot_count_are_errors() {
        let refused = |[rows, inner, columns]: [u64; 3]| {
            let shape = ProductShape::new(rows, inner, columns, ProductElement::F16);
            shape.expect_err("refused").to_string()
        };
        assert_eq!(refused([0, 1, 1]), "rows is 0, cuBLASLt takes 1 to 2147483647");
        assert_eq!(refused([1, 1 << 31, 1]), "inner is 2147483648, cuBLASLt takes 1 to 2147483647");
        assert_eq!(refused([1, 1, 0]), "columns is 0, cuBLASLt takes 1 to 2147483647");
        let shape = ProductShape::new(MAX_SIZE, 2, 3, ProductElement::F16).expect("legal");
        let shape = shape.with_bias().with_residual();
        assert!(shape.with_rows(MAX_SIZE + 1).is_err());
        let other = shape.with_rows(7).expect("legal");
        assert_eq!(other, ProductShape { rows: 7, ..shape });
    }

    #[test]
    fn memory_of_another_number_of_the_same_size_is_an_error() {
        let shape = ProductShape::new(1, 1, 1, ProductElement::F16).expect("legal");
        assert_eq!(shape.check_element::<f16>(), Ok(()));
        let (given, expected) = (ProductElement::Bf16, ProductElement::F16);
        let refused = ProductError::Element { given, expected };
        assert_eq!(shape.check_element::<bf16>(), Err(refused));
    }
}
