//! Attention on the host, in f32 as on the device, for machines without a device.

use gridguard::{Guard, Plan};

use super::operation::TemporalAttention;
use crate::element::{Element, to_u64, to_usize};
use crate::error::KernelError;

/// Runs `plan` on the host, chunk by chunk with items in parallel, and returns the number of chunks.
///
/// q and out are `[items, heads, frames, head_dim]`, k and v `[items, heads, keys, head_dim]`, contiguous; `bias` is
/// `[frames, keys]`, if the operation has one. `progress` is called after each item, from any thread.
///
/// # Errors
///
/// [`KernelError::Argument`] if a bias is missing or surplus, [`KernelError::Length`] if a tensor has
/// another length than its shape, before anything runs; [`KernelError::Host`] if a chunk fails.
#[allow(clippy::too_many_arguments, reason = "the tensors and what belongs to them")]
pub fn run_on_host<T: Element>(
    guard: &Guard,
    plan: &Plan,
    operation: &TemporalAttention,
    scale: f32,
    [q, k, v]: [&[T]; 3],
    bias: Option<&[T]>,
    out: &mut [T],
    progress: impl Fn() + Sync,
) -> Result<u64, KernelError> {
    let shape = operation.shape();
    for (tensor, length) in [("q", q.len()), ("out", out.len())] {
        check_length(tensor, length, &shape.dims())?;
    }
    for (tensor, length) in [("k", k.len()), ("v", v.len())] {
        check_length(tensor, length, &shape.key_dims())?;
    }
    operation.check_bias(bias.is_some())?;
    if let Some(bias) = bias {
        check_length("bias", bias.len(), &[shape.frames, shape.keys])?;
    }
    let widen = |part: &[T]| part.iter().map(|x| x.widen()).collect::<Vec<f32>>();
    let bias = bias.map(widen);
    let per_item = to_usize(shape.elements_per_item());
    let per_problem = to_usize(shape.elements_per_problem());
    let keys_per_problem = to_usize(shape.key_elements_per_problem());
    let problem = Problem {
        head_dim: to_usize(shape.head_dim),
        keys: to_usize(shape.keys),
        scale,
        causal: operation.causal,
        bias: bias.as_deref(),
    };
    let kernel = |item: u64, out: &mut [T]| {
        let first = to_usize(item).saturating_mul(to_usize(shape.heads));
        for (head, out) in out.chunks_mut(per_problem).enumerate() {
            let part = |tensor: &[T], size: usize| {
                let start = (first + head).saturating_mul(size);
                widen(tensor.get(start..start.saturating_add(size)).unwrap_or_default())
            };
            let [k, v] = [k, v].map(|tensor| part(tensor, keys_per_problem));
            problem.attend(&part(q, per_problem), &k, &v, out);
        }
        progress();
    };
    Ok(guard.launch_on_host(plan, out, per_item, kernel)?)
}

fn check_length(tensor: &'static str, length: usize, dims: &[u64]) -> Result<(), KernelError> {
    let (given, shape) = (to_u64(length), dims.to_vec());
    let expected = dims.iter().copied().map(u128::from).product();
    if u128::from(given) == expected {
        return Ok(());
    }
    Err(KernelError::Length { tensor, shape, expected, given })
}

/// What all attention problems of a launch share.
struct Problem<'a> {
    head_dim: usize,
    keys: usize,
    scale: f32,
    causal: bool,
    bias: Option<&'a [f32]>,
}

impl Problem<'_> {
    fn attend<T: Element>(&self, q: &[f32], k: &[f32], v: &[f32], out: &mut [T]) {
        let head_dim = self.head_dim;
        let mut weights = vec![0.0_f32; self.keys];
        let mut row = vec![0.0_f32; head_dim];
        for (frame, (query, out)) in q.chunks(head_dim).zip(out.chunks_mut(head_dim)).enumerate() {
            let bias = self.bias.and_then(|bias| bias.chunks(self.keys).nth(frame));
            for (at, (weight, key)) in weights.iter_mut().zip(k.chunks(head_dim)).enumerate() {
                let hidden = self.causal && at > frame;
                let score = query.iter().zip(key).map(|(a, b)| a * b).sum::<f32>() * self.scale;
                let added = bias.and_then(|bias| bias.get(at)).copied().unwrap_or(0.0);
                *weight = if hidden { f32::NEG_INFINITY } else { score + added };
            }
            // Finite, so that a row of -inf gives weights of zero instead of NaN.
            let highest = weights.iter().copied().fold(f32::MIN, f32::max);
            let mut total = 0.0;
            for weight in &mut weights {
                *weight = (*weight - highest).exp();
                total += *weight;
            }
            row.fill(0.0);
            for (weight, value) in weights.iter().zip(v.chunks(head_dim)) {
                for (sum, x) in row.iter_mut().zip(value) {
                    *sum += weight * x;
                }
            }
            for (out, sum) in out.iter_mut().zip(&row) {
                *out = T::narrow(if total == 0.0 { 0.0 } else { sum / total });
            }
        }
    }
}
