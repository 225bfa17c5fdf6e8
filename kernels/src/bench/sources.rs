//! Which device code there is today, to tell entries of a profile for code that was edited since.

use gridguard::profile::{Objective, Policy};
use gridguard::{ComputeCapability, DeviceLimits};

use super::problem::Problem;
use crate::element::ElementType;
use crate::temporal_attention::{Shape, TemporalAttention, Variant};
use crate::tunable::Tunable;

/// The hashes of a kernel's sources, one for each implementation; none for a kernel that there is
/// not. An entry of a profile whose [`source`](gridguard::profile::Key::source) is not among them
/// never serves again.
///
/// ```
/// use gridguard_kernels::bench::current_sources;
///
/// assert_eq!(current_sources("rms_norm").len(), 1);
/// assert!(current_sources("frobnicate").is_empty());
/// ```
#[must_use]
pub fn current_sources(kernel: &str) -> Vec<String> {
    let device = capable_device();
    if kernel == TemporalAttention::KERNEL {
        return Variant::ALL.into_iter().filter_map(|one| source_of(one, &device)).collect();
    }
    let any = Problem::shipped().into_iter().find(|problem| problem.kernel() == kernel);
    let key =
        any.and_then(|problem| problem.key(&device, Policy::default(), Objective::default()).ok());
    key.map(|key| key.source).into_iter().collect()
}

fn source_of(variant: Variant, device: &DeviceLimits) -> Option<String> {
    let element = match variant {
        Variant::SinglePrecision => ElementType::F32,
        _ => ElementType::F16,
    };
    let shape = Shape::new(1, 1, FRAMES, HEAD_DIM).ok()?;
    let attention = TemporalAttention::by_variant(shape, element, device, variant).ok()?;
    let key = attention.key(device, Policy::default(), Objective::default());
    key.ok().map(|key| key.source)
}

/// A device that has the instructions of all implementations.
fn capable_device() -> DeviceLimits {
    DeviceLimits {
        compute_capability: ComputeCapability::new(9, 0),
        max_shared_bytes_per_block_opt_in: 227 << 10,
        ..DeviceLimits::any_device()
    }
}

/// Sizes that all implementations of attention take.
const FRAMES: u64 = 32;
const HEAD_DIM: u64 = 64;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_implementation_has_a_source_of_its_own() {
        let of = |kernel| current_sources(kernel);
        let all: Vec<String> = Problem::KERNELS.into_iter().flat_map(of).collect();
        let distinct: HashSet<&String> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (12, 12), "seven kernels and five of attention");
    }

    #[test]
    fn the_source_of_every_key_is_current() {
        let device = capable_device();
        for problem in Problem::shipped() {
            let key = problem.key(&device, Policy::default(), Objective::default());
            let source = key.expect("taken").source;
            assert!(current_sources(problem.kernel()).contains(&source), "{problem}");
        }
    }
}
