//! The f64 reference and the tolerance.

use super::operation::TemporalAttention;
use crate::element::{Element, ElementType, to_usize, widened};

/// One problem of attention in f64: `softmax(scale * q k^T + bias) v` for q of `frames x head_dim`, k and v of
/// `keys x head_dim`, and a bias of `frames x keys`. A query whose keys are all hidden gives zeros.
///
/// Missing elements of the bias count as zero.
#[must_use]
pub fn reference<T: Element>(
    operation: &TemporalAttention,
    scale: f32,
    [q, k, v]: [&[T]; 3],
    bias: Option<&[T]>,
) -> Vec<f64> {
    let shape = operation.shape();
    let (keys_of_row, head_dim) = (to_usize(shape.keys).max(1), to_usize(shape.head_dim).max(1));
    let scale = f64::from(scale);
    let [q, k, v] = [q, k, v].map(|tensor| widened(tensor).collect::<Vec<f64>>());
    let mut out = vec![0.0; q.len()];
    for (frame, (query, row)) in q.chunks(head_dim).zip(out.chunks_mut(head_dim)).enumerate() {
        let bias = bias.and_then(|bias| bias.chunks(keys_of_row).nth(frame));
        let score = |(at, key): (usize, &[f64])| {
            let dot = query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() * scale;
            let added = bias.and_then(|bias| bias.get(at)).map_or(0.0, |x| x.widen().into());
            if operation.causal && at > frame { f64::NEG_INFINITY } else { dot + added }
        };
        let mut weights: Vec<f64> = k.chunks(head_dim).enumerate().map(score).collect();
        // Finite, so that a row of -inf gives weights of zero instead of NaN.
        let highest = weights.iter().copied().fold(f64::MIN, f64::max);
        weights.iter_mut().for_each(|weight| *weight = (*weight - highest).exp());
        let total: f64 = weights.iter().sum();
        let norm = if total == 0.0 { 0.0 } else { 1.0 / total };
        for (weight, value) in weights.iter().zip(v.chunks(head_dim)) {
            for (sum, x) in row.iter_mut().zip(value) {
                *sum += weight * norm * x;
            }
        }
    }
    out
}

/// The largest relative Frobenius error of a correct kernel.
///
/// The output is rounded once, by at most half a unit in the last place: 2^-11 for f16 and 2^-8 for bf16, relative
/// to the largest element. Over a tensor the errors average to about half of that. f32 arithmetic has far smaller
/// errors; it sums 64 to 160 products, each with an error of 2^-24.
#[must_use]
pub const fn tolerance(element: ElementType) -> f64 {
    match element {
        ElementType::F16 => 1e-3,
        ElementType::Bf16 => 8e-3,
        ElementType::F32 => 1e-5,
    }
}

#[cfg(test)]
mod tests {
    use gridguard::DeviceLimits;

    use super::*;
    use crate::temporal_attention::Shape;

    fn attention(frames: u64, head_dim: u64) -> TemporalAttention {
        let shape = Shape::new(1, 1, frames, head_dim).expect("legal");
        let device = DeviceLimits::any_device();
        TemporalAttention::new(shape, ElementType::F32, &device).expect("served")
    }

    #[test]
    fn equal_scores_average_the_values() {
        let v: &[f32] = &[1.0, 2.0, 3.0, 6.0];
        let out = reference(&attention(2, 2), 1.0, [&[0.0; 4], &[1.0; 4], v], None);
        assert_eq!(out, [2.0, 4.0, 2.0, 4.0]);
    }

    #[test]
    fn a_dominant_key_takes_all() {
        let qkv: [&[f32]; 3] = [&[1.0, -1.0], &[500.0, -500.0], &[7.0, 9.0]];
        let out = reference(&attention(2, 1), 1.0, qkv, None);
        assert!((out[0] - 7.0).abs() < 1e-9 && (out[1] - 9.0).abs() < 1e-9);
    }

    #[test]
    fn a_causal_frame_attends_to_itself_and_earlier_frames() {
        let qkv: [&[f32]; 3] = [&[0.0; 3], &[1.0; 3], &[3.0, 5.0, 10.0]];
        let out = reference(&attention(3, 1).causal(), 1.0, qkv, None);
        assert_eq!(out[..2], [3.0, 4.0]);
        assert!((out[2] - 6.0).abs() < 1e-12);
    }

    #[test]
    fn a_bias_hides_keys_and_a_row_without_keys_gives_zeros() {
        let hide = f32::NEG_INFINITY;
        let qkv: [&[f32]; 3] = [&[0.0; 2], &[1.0; 2], &[3.0, 5.0]];
        let bias: &[f32] = &[0.0, hide, hide, hide];
        let out = reference(&attention(2, 1).with_bias(), 1.0, qkv, Some(bias));
        assert_eq!(out, [3.0, 0.0]);
    }
}
