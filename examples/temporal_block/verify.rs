//! Compares the result with the f64 reference: at chunk boundaries, where a wrong split would show, and at
//! random.

use std::collections::BTreeSet;
use std::error::Error;

use gridguard_kernels::temporal_block::{BlockReference, BlockShape, BlockWeights, tolerance};
use gridguard_kernels::{Deviation, Element};
use gridguard_pipeline::PipelinePlan;
use rayon::prelude::*;

/// Random items.
const SAMPLE: u64 = 64;
/// The most chunks whose boundaries are compared.
const CHUNKS: usize = 1024;

/// Compares the first and the last item of every chunk and a random sample of items, prints what came of it,
/// and returns whether the result is correct.
pub(crate) fn verify<T: Element>(
    plan: &PipelinePlan,
    shape: &BlockShape,
    weights: &BlockWeights<T>,
    x: &[T],
    out: &[T],
) -> Result<bool, Box<dyn Error>> {
    let boundaries: BTreeSet<u64> = plan
        .chunks()
        .take(CHUNKS)
        .flat_map(|chunk| [chunk.start, chunk.end().saturating_sub(1)])
        .collect();
    // Steps of a large odd number spread over the whole batch.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let sample: BTreeSet<u64> = (1..=SAMPLE.min(shape.items()))
        .filter_map(|n| n.wrapping_mul(STEP).checked_rem(shape.items()))
        .collect();
    let all: Vec<u64> = boundaries.union(&sample).copied().collect();
    let reference = BlockReference::new(shape, weights)?;
    let size = usize::try_from(shape.elements_per_item())?;
    let compare = |item: &u64| {
        let start = usize::try_from(*item).unwrap_or(usize::MAX).saturating_mul(size);
        let part = start..start.saturating_add(size);
        let mut deviation = Deviation::new();
        if let (Some(x), Some(out)) = (x.get(part.clone()), out.get(part)) {
            deviation.add(out, &reference.item(x));
        }
        deviation
    };
    let merge = |mut left: Deviation, right: Deviation| {
        left.merge(&right);
        left
    };
    let deviation = all.par_iter().map(compare).reduce(Deviation::new, merge);
    let not_finite = out.par_iter().filter(|x| !x.widen().is_finite()).count();
    let (relative, most) = match out.is_empty() {
        true => (0.0, 0.0),
        false => (deviation.relative(), tolerance(T::TYPE)),
    };
    println!(
        "check    {} items at chunk boundaries and {} random ones against an f64 reference: relative \
         error {relative:.1e}, tolerance {most:.0e}",
        boundaries.len(),
        sample.len()
    );
    if not_finite > 0 {
        println!("         {not_finite} elements are not finite");
    }
    let is_correct = not_finite == 0 && relative <= most;
    println!("result   {}", if is_correct { "correct" } else { "WRONG" });
    Ok(is_correct)
}
