//! The launch parameters of the gradients.

use gridguard::DeviceLimits;

use super::super::operation::TemporalAttention;
use super::super::parameters::{LaunchParameters, MANY_PROBLEMS};
use super::super::shape::ROWS;
use super::super::slices::GROUP;
use crate::element::ElementType;
use crate::operation::HOPPER;

/// Rows that a warpgroup multiplies at once.
const GROUP_ROWS: u64 = 64;
/// The widest heads whose sums of four tiles of queries, or of eight, fit into the registers of warpgroups.
const GROUP_HEAD_DIMS: [u64; 2] = [128, 96];

/// Whether warpgroups are faster than single warps, which skip the tiles of keys that a causal mask hides.
pub(super) fn has_warpgroups(attention: &TemporalAttention, device: &DeviceLimits) -> bool {
    let shape = &attention.shape;
    let [few, many] = GROUP_HEAD_DIMS;
    device.compute_capability == HOPPER
        && attention.element != ElementType::F32
        && !attention.causal
        && match (shape.frames.min(shape.keys), shape.longest()) {
            (33.., ..=GROUP_ROWS) => shape.head_dim > 16 && shape.head_dim <= few,
            (33.., 97..) => shape.head_dim <= many,
            _ => false,
        }
}

/// The launch parameters that were fastest on an NVIDIA H200.
pub(super) fn default_parameters(
    attention: &TemporalAttention,
    warpgroup: bool,
) -> LaunchParameters {
    let (shape, one) = (&attention.shape, LaunchParameters::ONE);
    let tiles = shape.frames.div_ceil(ROWS);
    let many = |rounds| if shape.problems() < MANY_PROBLEMS { 1 } else { rounds };
    if warpgroup {
        let (warps, rounds) =
            if shape.longest() <= GROUP_ROWS { (GROUP, many(6)) } else { (2 * GROUP, many(8)) };
        return LaunchParameters { warps, rounds, stages: rounds.min(2), ..one };
    }
    match shape.longest() {
        ..=11 if shape.head_dim <= 32 => LaunchParameters { problems: 4, ..one },
        33.. if attention.element == ElementType::F32 => LaunchParameters { warps: tiles, ..one },
        65..=96 if shape.head_dim >= 64 && !attention.causal => {
            LaunchParameters { warps: tiles, ..one }
        }
        _ => {
            // Several warps prefetch the next problem into the L2 cache, if registers suffice.
            let fits = attention.element != ElementType::F32
                && shape.longest() <= if attention.biased || shape.head_dim > 32 { 64 } else { 96 };
            let rounds = if tiles > 2 && fits { many(8) } else { 1 };
            LaunchParameters { warps: tiles.div_ceil(2), rounds, ..one }
        }
    }
}
