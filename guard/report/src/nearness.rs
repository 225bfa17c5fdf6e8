//! How near grids are to a limit.

use core::cmp::Ordering;

use gridguard::Axis;
use serde::{Deserialize, Serialize};

/// How near a grid is to the limit of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nearness {
    /// The axis.
    pub axis: Axis,
    /// The blocks along it.
    pub blocks: u64,
    /// The most blocks along it.
    pub limit: u64,
}

impl Nearness {
    /// The part of the limit that the grid takes, rounded down.
    pub fn percent(&self) -> u64 {
        let percent = u128::from(self.blocks) * 100 / u128::from(self.limit.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }

    /// Whether a grid of ten times the size exceeds the limit.
    pub fn is_near(&self) -> bool {
        u128::from(self.blocks) * 10 > u128::from(self.limit)
    }

    /// The smallest batch that exceeds the limit, if the grid is of a launch with `batch` items and grows with them.
    pub fn breaking_batch(&self, batch: u64) -> u64 {
        let fits = u128::from(self.limit) * u128::from(batch) / u128::from(self.blocks.max(1));
        u64::try_from(fits).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// The nearer one first.
    pub fn compare(&self, other: &Self) -> Ordering {
        let product = |one: &Self, other: &Self| u128::from(one.limit) * u128::from(other.blocks);
        product(self, other).cmp(&product(other, self))
    }
}
