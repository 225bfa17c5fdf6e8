//! Compares the result with the f64 reference of its items.

use std::error::Error;

use gridguard_examples::Parts;
use gridguard_kernels::temporal_block::{BlockReference, BlockShape, BlockWeights, tolerance};
use gridguard_kernels::{Deviation, Element};
use gridguard_pipeline::PipelinePlan;

/// The most chunks whose boundaries are compared.
const CHUNKS: usize = 1024;

/// Prints how the result compares, and returns whether it is correct.
pub(crate) fn verify<T: Element>(
    plan: &PipelinePlan,
    shape: &BlockShape,
    weights: &BlockWeights<T>,
    x: &[T],
    out: &[T],
) -> Result<bool, Box<dyn Error>> {
    let reference = BlockReference::new(shape, weights)?;
    let size = usize::try_from(shape.elements_per_item())?;
    let compare = |item: u64| {
        let start = usize::try_from(item).unwrap_or(usize::MAX).saturating_mul(size);
        let part = start..start.saturating_add(size);
        let mut deviation = Deviation::new();
        if let (Some(x), Some(out)) = (x.get(part.clone()), out.get(part)) {
            deviation.add(out, &reference.item(x));
        }
        deviation
    };
    let parts = Parts { name: "items", count: shape.items(), per_item: 1, sampled: 64 };
    let (chunks, most) = (plan.chunks().take(CHUNKS), tolerance(T::TYPE));
    Ok(gridguard_examples::verify(parts, chunks, out, most, compare))
}
