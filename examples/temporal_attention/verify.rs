//! Compares the result with the f64 reference of its problems.

use gridguard::Plan;
use gridguard_examples::{Parts, Qkv};
use gridguard_kernels::temporal_attention::{TemporalAttention, reference, tolerance};
use gridguard_kernels::{Deviation, Element};

/// The most chunks whose boundaries are compared.
const CHUNKS: usize = 4096;

/// Prints how the result compares, and returns whether it is correct.
pub(crate) fn verify<T: Element>(
    plan: &Plan,
    attention: &TemporalAttention,
    qkv: &Qkv<T>,
    out: &[T],
) -> bool {
    let shape = &qkv.shape;
    let (count, per_item) = (shape.problems(), shape.heads());
    let parts = Parts { name: "problems", count, per_item, sampled: 256 };
    let compare = |problem| compare(problem, attention, qkv, out);
    gridguard_examples::verify(parts, plan.chunks().take(CHUNKS), out, tolerance(T::TYPE), compare)
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
