//! The kernel on the host, in f32 as on the device, for machines without one.

use gridguard::{Guard, HostLauncher, Plan};

use super::Shape;
use crate::element::Element;
use crate::error::KernelError;

/// Runs `plan` on the host, chunk by chunk, items in parallel; answers the number of chunks.
///
/// q, k, v and out are `[items, heads, frames, head_dim]`, contiguous. `progress` is called after
/// each item, from any thread.
///
/// # Errors
///
/// [`KernelError::Length`] where a tensor has another length than its shape, before anything runs;
/// [`KernelError::Host`] where a chunk fails.
#[allow(clippy::too_many_arguments, reason = "the tensors and what belongs to them")]
pub fn run_on_host<T: Element>(
    guard: &Guard,
    plan: &Plan,
    shape: &Shape,
    scale: f32,
    q: &[T],
    k: &[T],
    v: &[T],
    out: &mut [T],
    progress: impl Fn() + Sync,
) -> Result<u64, KernelError> {
    for (tensor, length) in [("q", q.len()), ("k", k.len()), ("v", v.len()), ("out", out.len())] {
        shape.check_length(tensor, length)?;
    }
    let narrow = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let per_item = narrow(shape.elements_per_item());
    let per_problem = narrow(shape.elements_per_problem());
    let head_dim = narrow(shape.head_dim);
    let kernel = |item: u64, out: &mut [T]| {
        let start = narrow(item).saturating_mul(per_item);
        for (head, out) in out.chunks_mut(per_problem).enumerate() {
            let first = start + head * per_problem;
            let part = |tensor: &[T]| -> Vec<f32> {
                let part = tensor.get(first..first + per_problem).unwrap_or_default();
                part.iter().map(|x| x.widen()).collect()
            };
            attend(head_dim, scale, &part(q), &part(k), &part(v), out);
        }
        progress();
    };
    Ok(guard.run(plan, &mut HostLauncher::new(out, per_item, kernel))?)
}

fn attend<T: Element>(head_dim: usize, scale: f32, q: &[f32], k: &[f32], v: &[f32], out: &mut [T]) {
    let mut weights = vec![0.0_f32; k.len() / head_dim.max(1)];
    let mut row = vec![0.0_f32; head_dim];
    for (query, out) in q.chunks(head_dim).zip(out.chunks_mut(head_dim)) {
        for (weight, key) in weights.iter_mut().zip(k.chunks(head_dim)) {
            *weight = query.iter().zip(key).map(|(a, b)| a * b).sum::<f32>() * scale;
        }
        let highest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
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
            *out = T::narrow(sum / total);
        }
    }
}
