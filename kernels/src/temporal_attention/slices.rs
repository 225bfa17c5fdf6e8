//! Which gradients of attention are computed by slices of keys, and how.

use gridguard::DeviceLimits;

use super::operation::TemporalAttention;
use super::shape::{COLUMNS, ROWS, Shape};
use super::variant::MAX_FRAMES;
use crate::element::ElementType;
use crate::operation::HOPPER;

/// Warps of a warpgroup.
pub(super) const GROUP: u64 = 4;
/// The most warps that share a problem by slices, so that each has 255 registers.
pub(super) const MAX_SLICE_WARPS: u64 = 8;
/// In f32, the most frames and keys whose scores are computed at once, and of heads with at most `NARROW_HEAD_DIM` elements.
const MAX_SINGLE_FRAMES: [u64; 2] = [32, 96];
const NARROW_HEAD_DIM: u64 = 40;

/// Whether registers have the scores of all keys, and this is faster than slices.
pub(super) fn has_all_keys(attention: &TemporalAttention) -> bool {
    let (shape, [few, more]) = (&attention.shape, MAX_SINGLE_FRAMES);
    let most = match attention.element {
        ElementType::F16 | ElementType::Bf16 => MAX_FRAMES,
        ElementType::F32 if shape.head_dim <= NARROW_HEAD_DIM => more,
        ElementType::F32 => few,
    };
    shape.longest() <= most
}

/// Whether warpgroups compute slices, the steps of 16 keys of a slice, and warps, the fastest on an NVIDIA H200 first.
pub(super) fn slices(
    attention: &TemporalAttention,
    device: &DeviceLimits,
) -> impl Iterator<Item = (bool, u64, u64)> + use<> {
    let Shape { frames, keys, head_dim, .. } = attention.shape;
    let is_half = attention.element != ElementType::F32;
    let of_groups = device.compute_capability == HOPPER && is_half && !attention.causal;
    // With the gradient of a bias, more rows or wider heads spill.
    let (rows, widest) = if attention.biased { (176, 32) } else { (256, 64) };
    let of_groups = of_groups && frames.min(keys) > 2 * ROWS && head_dim <= widest;
    let of_groups = of_groups && frames.max(keys) <= rows;
    let groups =
        if frames <= 192 && head_dim <= 32 { (true, 3, GROUP) } else { (true, 4, 2 * GROUP) };
    // A warp keeps the sums of its tiles of queries, one for each turn, in registers: `fast` tiles of columns, or more with
    // eight warps.
    let (tiles, columns) = (frames.div_ceil(ROWS), head_dim.div_ceil(COLUMNS));
    let (fast, of_two, of_one) = if is_half { (12, 16, 24) } else { (8, 12, 12) };
    let turns = tiles.div_ceil(MAX_SLICE_WARPS).max((fast / columns).min(3));
    let warps = tiles.div_ceil(turns).max(GROUP);
    // Wider heads spill.
    let sums = if columns > 16 { u64::MAX } else { turns * columns };
    let groups = of_groups.then_some(groups);
    let two = (sums <= of_two).then_some((false, 2, warps));
    let one = (sums <= of_one).then_some((false, 1, warps));
    groups.into_iter().chain(two).chain(one)
}
