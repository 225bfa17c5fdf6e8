//! Compares a result with its f64 reference: at chunk boundaries, where a wrong split would show, and at random.

use std::collections::BTreeSet;

use gridguard::Chunk;
use gridguard_kernels::{Deviation, Element};
use rayon::prelude::*;

/// The parts of a result that are compared, such as the problems of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// What they are called.
    pub name: &'static str,
    /// How many there are.
    pub count: u64,
    /// How many an item has.
    pub per_item: u64,
    /// How many are compared at random.
    pub sampled: u64,
}

/// Compares the parts of the first and the last item of every chunk and a random sample, prints what came of it, and
/// returns whether the result is correct. `compare` compares one part with its reference.
pub fn verify<T: Element>(
    Parts { name, count, per_item, sampled }: Parts,
    chunks: impl Iterator<Item = Chunk>,
    out: &[T],
    tolerance: f64,
    compare: impl Fn(u64) -> Deviation + Sync,
) -> bool {
    let boundaries: BTreeSet<u64> = chunks
        .flat_map(|chunk| [chunk.start, chunk.end().saturating_sub(1)])
        .flat_map(|item| item * per_item..(item + 1) * per_item)
        .collect();
    // Steps of a large odd number spread over the whole batch.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let sample: BTreeSet<u64> =
        (1..=sampled.min(count)).filter_map(|n| n.wrapping_mul(STEP).checked_rem(count)).collect();
    let all: Vec<u64> = boundaries.union(&sample).copied().collect();
    let merge = |mut left: Deviation, right: Deviation| {
        left.merge(&right);
        left
    };
    let deviation = all.par_iter().map(|part| compare(*part)).reduce(Deviation::new, merge);
    let not_finite = out.par_iter().filter(|x| !x.widen().is_finite()).count();
    let relative = if out.is_empty() { 0.0 } else { deviation.relative() };
    println!(
        "check    {} {name} at chunk boundaries and {} random ones against an f64 reference: relative \
         error {relative:.1e}, tolerance {tolerance:.0e}",
        boundaries.len(),
        sample.len()
    );
    if not_finite > 0 {
        println!("         {not_finite} elements are not finite");
    }
    let is_correct = not_finite == 0 && relative <= tolerance;
    println!("result   {}", if is_correct { "correct" } else { "WRONG" });
    is_correct
}
