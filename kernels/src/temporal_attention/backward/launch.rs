//! Launch parameters, registers and shared memory of the gradients.

use gridguard::DeviceLimits;

use super::super::operation::TemporalAttention;
use super::super::parameters::{LaunchParameters, MANY_PROBLEMS};
use super::super::shape::{COLUMNS, ROWS};
use super::super::slices::GROUP;
use super::AttentionBackward;
use crate::element::ElementType;
use crate::operation::HOPPER;

/// The most tiles of columns whose sums fit into the registers of a warp.
const MAX_COLUMN_TILES: u64 = 10;
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
            // Several warps ask for the next problem in the L2 cache, if registers suffice.
            let fits = attention.element != ElementType::F32
                && shape.longest() <= if attention.biased || shape.head_dim > 32 { 64 } else { 96 };
            let rounds = if tiles > 2 && fits { many(8) } else { 1 };
            LaunchParameters { warps: tiles.div_ceil(2), rounds, ..one }
        }
    }
}

impl AttentionBackward {
    /// The least number of blocks of a multiprocessor. The compiler then uses fewer registers, where that was faster and
    /// costs no spill.
    pub(super) fn resident_blocks(&self, device: &DeviceLimits) -> u64 {
        let TemporalAttention { shape, element, biased, strided, .. } = &self.attention;
        let LaunchParameters { warps, problems, .. } = self.parameters;
        let is_narrow = shape.head_dim <= 32;
        if device.compute_capability != HOPPER {
            return 1;
        }
        if self.slice.is_some() {
            let is_small = warps == GROUP && is_narrow && *element != ElementType::F32;
            return if is_small && !*biased && !*strided { 3 } else { 1 };
        }
        match (self.warpgroup, *element, warps, problems) {
            (true, _, GROUP, _) if is_narrow && *biased && shape.keys > 56 => 3,
            (true, _, GROUP, _) if is_narrow => 4,
            (false, ElementType::F32, 1, 1) if shape.longest() <= ROWS && shape.head_dim <= 64 => {
                12
            }
            (false, ElementType::F16 | ElementType::Bf16, 2, 1)
                if shape.longest() > 48 && shape.head_dim <= 16 && !*biased =>
            {
                10
            }
            (false, ElementType::F16 | ElementType::Bf16, 3, 1)
                if self.attention.causal && is_narrow && !*biased && !*strided =>
            {
                4
            }
            (false, ElementType::F16 | ElementType::Bf16, 5..=6, 1) if shape.head_dim <= 80 => 2,
            _ => 1,
        }
    }

    /// Dynamic shared memory of a block: `PROBLEM_BYTES` in the source for each problem.
    pub(super) fn shared_bytes(&self) -> u64 {
        let TemporalAttention { shape, element, causal, .. } = &self.attention;
        let LaunchParameters { warps, problems, stages, .. } = self.parameters;
        let (row_tiles, key_tiles) = (shape.frames.div_ceil(ROWS), shape.keys.div_ceil(ROWS));
        let tile = |columns: u64| ROWS * columns * element.bytes();
        let (row, columns) = match shape.head_dim.div_ceil(COLUMNS) {
            // Warpgroup instructions need rows of an even number of vectors.
            all if self.warpgroup => (all.next_multiple_of(2) * COLUMNS, all),
            all if all <= MAX_COLUMN_TILES => (shape.head_dim, all),
            all => (shape.head_dim, all.div_ceil(2 * all.div_ceil(MAX_COLUMN_TILES)) * 2),
        };
        let block = tile(columns * COLUMNS);
        let queries = row_tiles * tile(row);
        let keys = key_tiles * tile(row).max(block);
        let tensors = 2 * (queries + keys);
        // Weights and gradients of scores of the keys that a tile of queries sees, or a block of its gradients.
        let skips = *causal && !self.warpgroup;
        let unit = 2 * tile(ROWS);
        if let Some(slice) = self.slice {
            return problems * (stages * tensors + row_tiles * slice * unit + warps * block);
        }
        let area =
            |tile| (if skips { key_tiles.min(tile) } else { key_tiles }).max(block.div_ceil(unit));
        let areas = (1..=row_tiles).map(area).sum::<u64>() * unit;
        let replace_values = row_tiles <= warps && stages == 1;
        let begin = if replace_values { tensors - keys } else { stages * tensors };
        problems * tensors.max(begin + areas)
    }
}
