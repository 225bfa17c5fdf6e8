//! Attention on the host, for machines without a device.

use gridguard::{Guard, Plan};

use super::operation::TemporalAttention;
use super::reference::reference;
use crate::compare::store;
use crate::element::{Element, to_u64, to_usize};
use crate::error::KernelError;

/// Runs `plan` on the host, chunk by chunk with items in parallel, and returns the number of chunks. Arithmetic is f64,
/// and the output is rounded once.
///
/// q is `[items, heads, frames, head_dim]`, k `[items, heads, keys, head_dim]`, v `[items, heads, keys, value_dim]` and out
/// `[items, heads, frames, value_dim]`, contiguous; `bias` is `[frames, keys]`, if the operation has one. `progress` is called after each item, from any thread.
///
/// # Errors
///
/// [`KernelError::Argument`] if a bias is missing or surplus, [`KernelError::Length`] if a tensor has
/// another length than its shape, before anything runs; [`KernelError::Host`] if a chunk fails.
#[allow(clippy::too_many_arguments, reason = "the tensors and what belongs to them")]
pub fn run_on_host<'t, T: Element>(
    guard: &Guard,
    plan: &Plan,
    operation: &TemporalAttention,
    scale: f32,
    [q, k, v]: [&'t [T]; 3],
    bias: Option<&[T]>,
    out: &mut [T],
    progress: impl Fn() + Sync,
) -> Result<u64, KernelError> {
    let shape = operation.shape();
    for (at, (tensor, length)) in
        [("q", q.len()), ("k", k.len()), ("v", v.len()), ("out", out.len())].into_iter().enumerate()
    {
        check_length(tensor, length, &shape.tensor_dims(at))?;
    }
    operation.check_bias(bias.is_some())?;
    if let Some(bias) = bias {
        check_length("bias", bias.len(), &[shape.frames, shape.keys])?;
    }
    let of_problem = |at| {
        let [.., rows, columns] = shape.tensor_dims(at);
        to_usize(rows * columns)
    };
    let [of_q, of_k, of_v, per_problem] = [0, 1, 2, 3].map(of_problem);
    let per_item = per_problem.saturating_mul(to_usize(shape.heads));
    let kernel = |item: u64, out: &mut [T]| {
        let first = to_usize(item).saturating_mul(to_usize(shape.heads));
        for (head, out) in out.chunks_mut(per_problem).enumerate() {
            let part = |tensor: &'t [T], size: usize| {
                let start = (first + head).saturating_mul(size);
                tensor.get(start..start.saturating_add(size)).unwrap_or_default()
            };
            let parts = [part(q, of_q), part(k, of_k), part(v, of_v)];
            store(reference(operation, scale, parts, bias), out);
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
