//! Checks of a product's shape and operands.

use super::error::ProductError;
use super::shape::ProductShape;

impl ProductShape {
    /// Checks that the library can count the rows and columns.
    pub(super) fn check(&self) -> Result<(), ProductError> {
        let Self { rows, inner, columns, .. } = *self;
        // Then 64 bits count the bytes of every matrix.
        for (size, given) in [("rows", rows), ("inner", inner), ("columns", columns)] {
            if !(1..=MAX_SIZE).contains(&given) {
                return Err(ProductError::Size { size, given, most: MAX_SIZE });
            }
        }
        Ok(())
    }

    /// Checks that memory has elements of the product's size.
    pub(super) fn check_element<T>(&self) -> Result<(), ProductError> {
        let given = u64::try_from(size_of::<T>()).unwrap_or(u64::MAX);
        let expected = self.element.bytes();
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
