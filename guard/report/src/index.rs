//! 32-bit indices of kernels that a process launched.

use gridguard::LaunchRequest;
use serde::{Deserialize, Serialize};

use crate::nearness::Nearness;

/// What a launch showed about the 32-bit indices of a kernel: the first launch that wraps, or else the launch nearest to
/// one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexUse {
    /// The kernel's name in the device code.
    pub kernel: String,
    /// The launch configuration.
    pub request: LaunchRequest,
    /// The indices that wrapped, each with its largest value and its instruction.
    #[serde(default)]
    pub wraps: Vec<String>,
    /// The axis along which a larger grid wraps first, and the most blocks without a wrap.
    pub next: Option<Nearness>,
}

impl IndexUse {
    /// Whether this says more than `other` about the same kernel.
    pub fn is_worse_than(&self, other: &Self) -> bool {
        match (self.wraps.is_empty(), other.wraps.is_empty()) {
            (false, true) => true,
            (true, true) => match (self.next, other.next) {
                (Some(own), Some(other)) => own.compare(&other).is_lt(),
                (own, _) => own.is_some(),
            },
            _ => false,
        }
    }

    /// The grid, as `1 x 40000 x 1`.
    pub(crate) fn grid(&self) -> String {
        self.request.grid.to_string()
    }
}

/// How many kernels were compared with their PTX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexCoverage {
    /// Kernels whose PTX was at hand.
    pub kernels: u64,
    /// Launches of those kernels.
    pub launches: u64,
    /// Kernels whose PTX was not found, is of another build or cannot be read.
    pub kernels_without_ptx: u64,
    /// Kernels not all of whose launches were compared, because that took too much work.
    pub kernels_in_part: u64,
    /// Kernels with a launch of which it is unknown whether an index wraps.
    #[serde(default)]
    pub kernels_unknown: u64,
}
