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
/// q and out are `[items, heads, frames, head_dim]`, k and v `[items, heads, keys, head_dim]`, contiguous; `bias` is
/// `[frames, keys]`, if the operation has one. `progress` is called after each item, from any thread.
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
    let per_item = to_usize(shape.elements_per_item());
    let per_problem = to_usize(shape.elements_per_problem());
    let keys_per_problem = to_usize(shape.key_elements_per_problem());
    let kernel = |item: u64, out: &mut [T]| {
        let first = to_usize(item).saturating_mul(to_usize(shape.heads));
        for (head, out) in out.chunks_mut(per_problem).enumerate() {
            let part = |tensor: &'t [T], size: usize| {
                let start = (first + head).saturating_mul(size);
                tensor.get(start..start.saturating_add(size)).unwrap_or_default()
            };
            let [k, v] = [k, v].map(|tensor| part(tensor, keys_per_problem));
            store(reference(operation, scale, [part(q, per_problem), k, v], bias), out);
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
