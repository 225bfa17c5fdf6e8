//! What the kernel must compute, in f64, and how far it may be off.

use super::Shape;
use crate::element::{Element, ElementType};

/// One problem of attention in f64: `softmax(scale * q k^T) v` for `frames x head_dim` tensors.
///
/// Slices beyond `frames * head_dim` elements are ignored; missing elements count as zero.
#[must_use]
pub fn reference<T: Element>(shape: &Shape, scale: f32, q: &[T], k: &[T], v: &[T]) -> Vec<f64> {
    let head_dim = usize::try_from(shape.head_dim).unwrap_or(usize::MAX).max(1);
    let scale = f64::from(scale);
    let widen = |row: &[T]| row.iter().map(|x| f64::from(x.widen())).collect::<Vec<f64>>();
    let keys: Vec<Vec<f64>> = k.chunks(head_dim).map(widen).collect();
    let values: Vec<Vec<f64>> = v.chunks(head_dim).map(widen).collect();
    let mut out = Vec::with_capacity(q.len());
    for query in q.chunks(head_dim).map(widen) {
        let dot = |key: &Vec<f64>| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() * scale;
        let scores: Vec<f64> = keys.iter().map(dot).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut row = vec![0.0; head_dim];
        for (weight, value) in weights.iter().zip(&values) {
            for (sum, x) in row.iter_mut().zip(value) {
                *sum += weight / total * x;
            }
        }
        out.extend(row);
    }
    out
}

/// The largest relative Frobenius error that a correct kernel has.
///
/// Arithmetic is f32 and its error far below; what remains is rounding the output once, at most
/// half a unit in the last place: 2^-11 for f16, 2^-8 for bf16 of the largest element. Over a
/// tensor the errors average to about half of that. f32 has 64 to 128 products to sum, each with
/// 2^-24.
#[must_use]
pub const fn tolerance(element: ElementType) -> f64 {
    match element {
        ElementType::F16 => 1e-3,
        ElementType::Bf16 => 8e-3,
        ElementType::F32 => 1e-5,
    }
}

/// How far results are from their references, gathered over any number of slices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Deviation {
    squared_error: f64,
    squared_norm: f64,
    compared: u64,
    /// Elements that are no finite number although the reference is, or that are missing.
    wrong: u64,
}

impl Deviation {
    /// Nothing compared yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Compares `result` with `reference`, element by element. A length that differs counts every
    /// missing or surplus element as wrong.
    pub fn add<T: Element>(&mut self, result: &[T], reference: &[f64]) {
        let differ = result.len().abs_diff(reference.len());
        self.wrong += u64::try_from(differ).unwrap_or(u64::MAX);
        for (x, expected) in result.iter().zip(reference) {
            let error = f64::from(x.widen()) - expected;
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

    /// The relative Frobenius error; infinite where an element was wrong or nothing was compared.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.wrong > 0 || self.compared == 0 {
            return f64::INFINITY;
        }
        if self.squared_error == 0.0 {
            return 0.0;
        }
        (self.squared_error / self.squared_norm).sqrt()
    }

    /// Elements compared.
    #[must_use]
    pub const fn compared(&self) -> u64 {
        self.compared
    }

    /// Whether the results are within `tolerance`. A NaN never is.
    #[must_use]
    pub fn within(&self, tolerance: f64) -> bool {
        self.relative() <= tolerance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_average_the_values() {
        let shape = Shape::new(1, 1, 2, 2).expect("legal");
        let out = reference(&shape, 1.0, &[0.0_f32; 4], &[1.0; 4], &[1.0, 2.0, 3.0, 6.0]);
        assert_eq!(out, [2.0, 4.0, 2.0, 4.0]);
    }

    #[test]
    fn a_dominant_key_takes_all() {
        let shape = Shape::new(1, 1, 2, 1).expect("legal");
        let out = reference(&shape, 1.0, &[1.0_f32, -1.0], &[500.0, -500.0], &[7.0, 9.0]);
        assert!((out[0] - 7.0).abs() < 1e-9 && (out[1] - 9.0).abs() < 1e-9);
    }

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
