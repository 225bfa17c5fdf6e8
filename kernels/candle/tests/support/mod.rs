//! Random tensors, attention by candle's own operators, and the comparison of results.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use candle_core::{D, DType, Device, Result, Tensor};
use fastrand::Rng;

/// The types of the kernels.
pub const DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// A contiguous tensor of numbers from -2 to 2.
pub fn random(rng: &mut Rng, dims: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..dims.iter().product()).map(|_| rng.f32() * 4.0 - 2.0).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
}

/// As [`random`], in memory that is contiguous, a part of a larger tensor, repeated along an axis, or has two axes
/// swapped.
pub fn random_layout(
    rng: &mut Rng,
    dims: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let mut larger = dims.to_vec();
    match rng.u32(0..5) {
        0 => random(rng, dims, dtype, device),
        // The last of three, which begins anywhere.
        1 => {
            larger.insert(0, 3);
            random(rng, &larger, dtype, device)?.get(2)
        }
        2 => {
            let axis = rng.usize(0..dims.len());
            larger[axis] += 2;
            random(rng, &larger, dtype, device)?.narrow(axis, 1, dims[axis])
        }
        3 => {
            larger[rng.usize(0..dims.len())] = 1;
            random(rng, &larger, dtype, device)?.broadcast_as(dims)
        }
        _ => {
            let (one, other) = (rng.usize(0..dims.len()), rng.usize(0..dims.len()));
            larger.swap(one, other);
            random(rng, &larger, dtype, device)?.transpose(one, other)
        }
    }
}

/// Attention in f32 by candle's own operators.
pub fn attention_by_candle(
    tensors: [&Tensor; 3],
    scale: f32,
    causal: bool,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let [frames, keys] = [tensors[0].dim(D::Minus2)?, tensors[1].dim(D::Minus2)?];
    let of_problems = |tensor: &Tensor| {
        let (rows, head_dim) = (tensor.dim(D::Minus2)?, tensor.dim(D::Minus1)?);
        tensor.to_dtype(DType::F32)?.contiguous()?.reshape(((), rows, head_dim))
    };
    let [q, k, v] = tensors.map(of_problems);
    let (q, k, v) = (q?, k?, v?);
    let mut scores = (q.matmul(&k.t()?)? * f64::from(scale))?;
    if let Some(bias) = bias {
        scores = scores.broadcast_add(&bias.to_dtype(DType::F32)?)?;
    }
    if causal {
        let hidden = (0..frames * keys)
            .map(|at| if at % keys > at / keys { f32::NEG_INFINITY } else { 0.0 });
        let hidden = Tensor::from_iter(hidden, q.device())?.reshape((frames, keys))?;
        scores = scores.broadcast_add(&hidden)?;
    }
    candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)?.reshape(tensors[0].shape())
}

/// The Frobenius norm of the difference of two results over that of the second; NaN where either has one.
pub fn deviation(ours: &Tensor, theirs: &Tensor) -> Result<f64> {
    let values = |tensor: &Tensor| {
        let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        tensor.flatten_all()?.to_vec1::<f32>()
    };
    let (ours, theirs) = (values(ours)?, values(theirs)?);
    assert_eq!(ours.len(), theirs.len());
    let (mut difference, mut norm) = (0.0, f64::MIN_POSITIVE);
    for (one, other) in ours.into_iter().zip(theirs).map(|(a, b)| (f64::from(a), f64::from(b))) {
        difference += (one - other) * (one - other);
        norm += other * other;
    }
    Ok((difference / norm).sqrt())
}

/// The largest deviation of a correct operator: twice the kernels' tolerance, since both results may be rounded.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 1e-5,
    }
}
