//! Compares the result with the f64 reference: at chunk boundaries, where a wrong split would show,
//! and at random.

use std::collections::BTreeSet;

use gridguard::Plan;
use gridguard_examples::Qkv;
use gridguard_kernels::Deviation;
use gridguard_kernels::Element;
use gridguard_kernels::temporal_attention::{TemporalAttention, reference, tolerance};
use rayon::prelude::*;

/// The result of the comparison.
pub(crate) struct Verification {
    pub(crate) boundaries: usize,
    pub(crate) sampled: usize,
    pub(crate) relative: f64,
    pub(crate) tolerance: f64,
    /// Elements of the whole output that are not finite.
    pub(crate) not_finite: usize,
    pub(crate) is_correct: bool,
}

/// Random problems.
const SAMPLE: u64 = 256;
/// The most chunks whose boundaries are compared.
const CHUNKS: usize = 4096;

/// Compares the first and the last item of every chunk and a random sample of problems.
pub(crate) fn verify<T: Element>(
    plan: &Plan,
    attention: &TemporalAttention,
    qkv: &Qkv<T>,
    out: &[T],
) -> Verification {
    let shape = &qkv.shape;
    let boundaries: BTreeSet<u64> = plan
        .chunks()
        .take(CHUNKS)
        .flat_map(|chunk| [chunk.start, chunk.end().saturating_sub(1)])
        .flat_map(|item| item * shape.heads()..(item + 1) * shape.heads())
        .collect();
    // Steps of a large odd number spread over the whole batch.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let sample: BTreeSet<u64> = (1..=SAMPLE.min(shape.problems()))
        .filter_map(|n| n.wrapping_mul(STEP).checked_rem(shape.problems()))
        .collect();
    let all: Vec<u64> = boundaries.union(&sample).copied().collect();
    let deviation = all.par_iter().map(|problem| compare(*problem, attention, qkv, out)).reduce(
        Deviation::new,
        |mut left, right| {
            left.merge(&right);
            left
        },
    );
    let not_finite = out.par_iter().filter(|x| !x.widen().is_finite()).count();
    let tolerance = tolerance(T::TYPE);
    let nothing_to_do = out.is_empty();
    Verification {
        boundaries: boundaries.len(),
        sampled: sample.len(),
        relative: if nothing_to_do { 0.0 } else { deviation.relative() },
        tolerance,
        not_finite,
        is_correct: nothing_to_do || (not_finite == 0 && deviation.within(tolerance)),
    }
}

fn compare<T: Element>(
    problem: u64,
    attention: &TemporalAttention,
    qkv: &Qkv<T>,
    out: &[T],
) -> Deviation {
    let shape = &qkv.shape;
    let size = usize::try_from(shape.elements_per_problem()).unwrap_or(usize::MAX);
    let start = usize::try_from(problem).unwrap_or(usize::MAX).saturating_mul(size);
    let part = |tensor: &'_ [T]| -> Vec<T> {
        tensor.get(start..start.saturating_add(size)).unwrap_or_default().to_vec()
    };
    let [q, k, v] = [&qkv.q, &qkv.k, &qkv.v].map(|tensor| part(tensor));
    let expected = reference(attention, shape.scale(), [&q[..], &k, &v], None);
    let mut deviation = Deviation::new();
    deviation.add(&part(out), &expected);
    deviation
}
