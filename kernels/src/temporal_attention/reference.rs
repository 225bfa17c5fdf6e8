//! The f64 reference and the tolerance.

use super::backward::AttentionBackward;
use super::operation::TemporalAttention;
use super::shape::Shape;
use crate::element::{Element, ElementType, to_usize, widened};

/// One problem of attention in f64: `softmax(scale * q k^T + bias) v` for q of `frames x head_dim`, k of
/// `keys x head_dim`, v of `keys x value_dim`, and a bias of `frames x keys`. A query whose keys are all hidden gives zeros.
///
/// Missing elements of the bias count as zero.
pub fn reference<T: Element>(
    operation: &TemporalAttention,
    scale: f32,
    [q, k, v]: [&[T]; 3],
    bias: Option<&[T]>,
) -> Vec<f64> {
    let Shape { head_dim, value_dim, .. } = operation.shape;
    let [head_dim, value_dim] = [head_dim, value_dim].map(|size| to_usize(size).max(1));
    let [q, k, v] = [q, k, v].map(|tensor| widened(tensor).collect::<Vec<f64>>());
    let mut out = vec![0.0; q.len() / head_dim * value_dim];
    for (frame, (query, row)) in q.chunks(head_dim).zip(out.chunks_mut(value_dim)).enumerate() {
        let weights = weights(operation, scale, (frame, query), &k, bias);
        for (weight, value) in weights.iter().zip(v.chunks(value_dim)) {
            add(row, *weight, value);
        }
    }
    out
}

/// The gradients dq, dk, dv and the gradient of the bias, `[frames, keys]`, of one problem of attention in f64. `grad` is the
/// gradient of the output; see [`reference()`] for the other tensors.
pub fn reference_gradients<T: Element>(
    operation: &AttentionBackward,
    scale: f32,
    [q, k, v, grad]: [&[T]; 4],
    bias: Option<&[T]>,
) -> [Vec<f64>; 4] {
    let attention = operation.attention();
    let head_dim = to_usize(attention.shape.head_dim).max(1);
    let [q, k, v, grad] = [q, k, v, grad].map(|tensor| widened(tensor).collect::<Vec<f64>>());
    let [mut dq, mut dk, mut dv] = [&q, &k, &v].map(|tensor| vec![0.0; tensor.len()]);
    let mut of_bias = Vec::new();
    let rows = q.chunks(head_dim).zip(grad.chunks(head_dim)).zip(dq.chunks_mut(head_dim));
    for (frame, ((query, grad), dq)) in rows.enumerate() {
        let weights = weights(attention, scale, (frame, query), &k, bias);
        let of_weights: Vec<f64> = v.chunks(head_dim).map(|value| dot(grad, value)).collect();
        let mean = dot(&weights, &of_weights);
        let of_keys = k.chunks(head_dim).zip(dk.chunks_mut(head_dim).zip(dv.chunks_mut(head_dim)));
        for ((weight, of_weight), (key, (dk, dv))) in weights.iter().zip(of_weights).zip(of_keys) {
            let of_bias_element = weight * (of_weight - mean);
            of_bias.push(of_bias_element);
            let of_score = f64::from(scale) * of_bias_element;
            add(dq, of_score, key);
            add(dk, of_score, query);
            add(dv, *weight, grad);
        }
    }
    [dq, dk, dv, of_bias]
}

/// The weights of all keys for one query.
fn weights<T: Element>(
    operation: &TemporalAttention,
    scale: f32,
    (frame, query): (usize, &[f64]),
    keys: &[f64],
    bias: Option<&[T]>,
) -> Vec<f64> {
    let bias = bias.and_then(|bias| bias.chunks(to_usize(operation.shape.keys).max(1)).nth(frame));
    let score = |(at, key): (usize, &[f64])| {
        let added = bias.and_then(|bias| bias.get(at)).map_or(0.0, |x| x.widen().into());
        let score = dot(query, key) * f64::from(scale) + added;
        if operation.causal && at > frame { f64::NEG_INFINITY } else { score }
    };
    let mut weights: Vec<f64> = keys.chunks(query.len().max(1)).enumerate().map(score).collect();
    // Finite, so that a row of -inf gives weights of zero instead of NaN.
    let highest = weights.iter().copied().fold(f64::MIN, f64::max);
    weights.iter_mut().for_each(|weight| *weight = (*weight - highest).exp());
    let total: f64 = weights.iter().sum();
    let norm = if total == 0.0 { 0.0 } else { 1.0 / total };
    weights.iter_mut().for_each(|weight| *weight *= norm);
    weights
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Adds `factor * row` to a row of sums.
fn add(sums: &mut [f64], factor: f64, row: &[f64]) {
    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += factor * x);
}

/// The largest relative Frobenius error of a correct kernel, of the output and of each gradient.
///
/// The output is rounded once, by at most half a unit in the last place: 2^-11 for f16 and 2^-8 for bf16, relative
/// to the largest element. Over a tensor the errors average to about half of that. f32 arithmetic has far smaller
/// errors; it sums 64 to 160 products, each with an error of 2^-24.
///
/// The gradients are rounded twice in f16 and bf16: weights and gradients of scores are rounded before they are
/// multiplied. These errors are independent, which gives at most 1.5 times the error of the output. In f32 a product has
/// an error of at most 2^-18, and the errors average out. Measured on an NVIDIA H200: 3e-4, 2.4e-3 and 2e-6.
pub const fn tolerance(element: ElementType) -> f64 {
    match element {
        ElementType::F16 => 1e-3,
        ElementType::Bf16 => 8e-3,
        ElementType::F32 => 1e-5,
    }
}

#[cfg(test)]
mod tests {
    use gridguard::{ComputeCapability, DeviceLimits};

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
    fn values_may_have_more_columns_than_keys() {
        let attention = attention(2, 1);
        let shape = attention.shape.with_value_dim(2).expect("legal");
        let attention = TemporalAttention { shape, ..attention };
        let qkv: [&[f32]; 3] = [&[0.0; 2], &[1.0; 2], &[1.0, 2.0, 3.0, 6.0]];
        assert_eq!(reference(&attention, 1.0, qkv, None), [2.0, 4.0, 2.0, 4.0]);
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

    fn backward(attention: TemporalAttention) -> AttentionBackward {
        let mut device = DeviceLimits::any_device();
        device.compute_capability = ComputeCapability::new(9, 0);
        AttentionBackward::new(attention, &device).expect("served")
    }

    /// Numbers without a pattern, between -1 and 1.
    fn numbers(len: u16, seed: f32) -> Vec<f32> {
        (0..len).map(|at| (f32::from(at) * 12.9898 + seed).sin()).collect()
    }

    #[test]
    fn gradients_are_the_finite_differences_of_the_reference() {
        let shape = Shape::new(1, 1, 5, 4).expect("legal").with_keys(3).expect("legal");
        let attention = attention(5, 4);
        let attention = TemporalAttention { shape, ..attention }.causal().with_bias();
        let [q, k, v, grad] =
            [(20, 1.0), (12, 2.0), (12, 3.0), (20, 4.0)].map(|(n, s)| numbers(n, s));
        let mut bias = numbers(15, 5.0);
        bias[4] = f32::NEG_INFINITY;
        let scale = 0.75;
        let loss = |[q, k, v, bias]: [&[f32]; 4]| {
            let out = reference(&attention, scale, [q, k, v], Some(bias));
            out.iter().zip(&grad).map(|(x, grad)| x * f64::from(*grad)).sum::<f64>()
        };
        let tensors = [&q[..], &k, &v, &grad];
        let gradients = reference_gradients(&backward(attention), scale, tensors, Some(&bias));
        let step = 1e-3;
        for (place, gradient) in gradients.iter().enumerate() {
            for at in 0..gradient.len() {
                let moved = |by: f32| {
                    let mut tensors = [q.clone(), k.clone(), v.clone(), bias.clone()];
                    tensors[place][at] += by;
                    let exact = f64::from(tensors[place][at]);
                    (exact, loss(tensors.each_ref().map(Vec::as_slice)))
                };
                if place == 3 && bias[at].is_infinite() {
                    assert!(gradient[at] == 0.0, "a hidden key has no gradient");
                    continue;
                }
                let ((low, below), (high, above)) = (moved(-step), moved(step));
                let expected = (above - below) / (high - low);
                assert!((gradient[at] - expected).abs() < 1e-6, "{place} {at}: {gradient:?}");
            }
        }
    }

    #[test]
    fn a_query_without_keys_has_gradients_of_zero() {
        let hide = f32::NEG_INFINITY;
        let attention = attention(2, 4).with_bias();
        let rows: &[f32] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let bias: &[f32] = &[hide, hide, 0.0, hide];
        let [dq, dk, dv, of_bias] =
            reference_gradients(&backward(attention), 1.0, [rows; 4], Some(bias));
        assert_eq!((dq, dk, of_bias), (vec![0.0; 8], vec![0.0; 8], vec![0.0; 4]));
        // All the weight of the second query is on the first key.
        assert_eq!(dv, [5.0, 6.0, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
