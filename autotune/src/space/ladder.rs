//! Which chunk sizes are worth a measurement.

use gridguard::Dim3;

use crate::candidate::LaunchConfig;

/// Sizes in items, ascending: from the chunk that fills the device once, each twice the one before,
/// up to all items. The planner decides which of them are legal.
///
/// A chunk of less than a wave leaves multiprocessors idle, and between two powers of two lies
/// little: time against chunk size is flat but for its ends.
pub(crate) fn chunk_sizes(configuration: &LaunchConfig) -> Vec<u64> {
    let batch = &configuration.batch;
    let Some(unit) = batch.unit().filter(|_| batch.items() > 0) else {
        return Vec::new();
    };
    let mut size = round_up(wave_items(configuration), unit);
    let mut sizes = Vec::new();
    while size < batch.items() {
        sizes.push(size);
        size = size.saturating_mul(2);
    }
    // More than this are left out at the small end, where launches would be the most.
    let legal = batch.items_within(configuration.limits.device().max_grid.along(batch.axis()));
    sizes.retain(|size| *size / 2 < legal);
    let surplus = sizes.len().saturating_sub(MOST_POINTS);
    sizes.drain(..surplus);
    // As many items as fit, whatever the default does.
    sizes.push(batch.items());
    sizes
}

/// Blocks that fill the device once, at least one.
pub(crate) fn wave_blocks(configuration: &LaunchConfig) -> u64 {
    let resident = configuration.limits.resident_blocks(&configuration.request);
    configuration.limits.device().multiprocessors.saturating_mul(resident).max(1)
}

/// Points of the ladder between its ends. Twelve doublings span chunks from the whole batch to 4,096
/// launches of a wave, where launches alone take milliseconds.
pub(crate) const MOST_POINTS: usize = 12;

/// Items whose blocks fill the device once.
fn wave_items(configuration: &LaunchConfig) -> u64 {
    let (batch, grid) = (&configuration.batch, configuration.request.grid);
    let beside = grid.with(batch.axis(), 1);
    let Dim3 { x, y, z } = beside;
    let beside = x.saturating_mul(y).saturating_mul(z).max(1);
    let blocks = u128::from(wave_blocks(configuration).div_ceil(beside));
    let all_blocks = u128::from(grid.along(batch.axis()).max(1));
    let items = u128::from(batch.items()).saturating_mul(blocks).div_ceil(all_blocks);
    u64::try_from(items).unwrap_or(u64::MAX).max(1)
}

fn round_up(items: u64, unit: u64) -> u64 {
    items.div_ceil(unit.max(1)).saturating_mul(unit.max(1))
}
