//! The error of results against their references.

use crate::element::{Element, to_u64, widened};

/// The error of results against f64 references, accumulated over any number of slices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Deviation {
    /// The sum of squared errors.
    pub squared_error: f64,
    /// The sum of squared elements of the references.
    pub squared_norm: f64,
    /// Elements compared.
    pub compared: u64,
    /// Elements with an error that is not finite, and elements missing or surplus.
    pub wrong: u64,
}

impl Deviation {
    /// Nothing compared yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compares `result` with `reference`, element by element. If their lengths differ, every missing
    /// or surplus element counts as wrong.
    pub fn add<T: Element>(&mut self, result: &[T], reference: &[f64]) {
        self.add_values(widened(result), reference);
    }

    /// Like [`Self::add`], for values that are f64 already.
    pub fn add_values(&mut self, result: impl ExactSizeIterator<Item = f64>, reference: &[f64]) {
        self.wrong += to_u64(result.len().abs_diff(reference.len()));
        for (x, expected) in result.zip(reference) {
            let error = x - expected;
            if error.is_finite() {
                self.squared_error += error * error;
                self.squared_norm += expected * expected;
            } else {
                self.wrong += 1;
            }
            self.compared += 1;
        }
    }

    /// Adds another comparison.
    pub fn merge(&mut self, other: &Self) {
        self.squared_error += other.squared_error;
        self.squared_norm += other.squared_norm;
        self.compared += other.compared;
        self.wrong += other.wrong;
    }

    /// The relative Frobenius error; infinite if an element was wrong or nothing was compared.
    pub fn relative(&self) -> f64 {
        if self.wrong > 0 || self.compared == 0 {
            return f64::INFINITY;
        }
        // Zero if there is no error, even if the norm is zero.
        if self.squared_error == 0.0 {
            0.0
        } else {
            (self.squared_error / self.squared_norm).sqrt()
        }
    }

    /// Whether the relative error is at most `tolerance`. Never true after a NaN.
    pub fn within(&self, tolerance: f64) -> bool {
        self.relative() <= tolerance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_or_a_missing_element_is_never_within() {
        let mut deviation = Deviation::new();
        deviation.add(&[1.0_f32, f32::NAN], &[1.0, 2.0]);
        assert!(!deviation.within(f64::MAX));
        let mut deviation = Deviation::new();
        deviation.add(&[1.0_f32], &[1.0, 2.0]);
        assert!(!deviation.within(f64::MAX));
        assert!(!Deviation::new().within(f64::MAX));
    }

    #[test]
    fn the_relative_error_is_over_all_slices() {
        let mut deviation = Deviation::new();
        deviation.add(&[3.0_f32, 4.0], &[3.0, 4.0]);
        deviation.add(&[0.5_f32], &[0.0]);
        assert!((deviation.relative() - 0.1).abs() < 1e-12);
    }
}
