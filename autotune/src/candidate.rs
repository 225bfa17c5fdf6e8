//! One legal way to run a launch, and what it is planned from.

use core::cmp::Ordering;
use core::fmt;

use gridguard::profile::{Named, StoredChoice};
use gridguard::{BatchAxis, DeviceLimits, KernelLimits, LaunchLimits, LaunchRequest, Strategy};
use serde::{Deserialize, Serialize};

/// A kernel with one set of launch parameters: what a candidate is planned from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Described", into = "Described")]
pub struct LaunchConfig {
    /// Names and values; empty for a kernel that has none.
    pub parameters: Named,
    /// The launch over the whole problem.
    pub request: LaunchRequest,
    /// Its independent items.
    pub batch: BatchAxis,
    /// What device and kernel allow.
    pub limits: LaunchLimits,
}

/// A [`LaunchConfig`] as data: its limits without their identity.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    parameters: Named,
    request: LaunchRequest,
    batch: BatchAxis,
    device: DeviceLimits,
    kernel: KernelLimits,
}

impl From<LaunchConfig> for Described {
    fn from(configuration: LaunchConfig) -> Self {
        let LaunchConfig { parameters, request, batch, limits } = configuration;
        let (device, kernel) = (limits.device().clone(), limits.kernel().clone());
        Self { parameters, request, batch, device, kernel }
    }
}

impl From<Described> for LaunchConfig {
    fn from(described: Described) -> Self {
        let Described { parameters, request, batch, device, kernel } = described;
        Self { parameters, request, batch, limits: LaunchLimits::new(device, kernel) }
    }
}

/// One way to run the launch, legal by the planner's word.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Launch parameters of the kernel.
    pub parameters: Named,
    /// What the planner is asked for.
    pub choice: StoredChoice,
    /// What it answers.
    pub strategy: Strategy,
    /// How many launches that takes.
    pub launches: u64,
    /// Items of the largest one.
    pub largest_chunk: u64,
    /// Threads of a block.
    pub block_threads: u64,
}

impl Candidate {
    /// The order in which ties are decided, after the default: fewer launches, smaller blocks, then
    /// anything that is the same in every run.
    #[must_use]
    pub fn tie_order(&self, other: &Self) -> Ordering {
        let simplicity = |one: &Self| (one.launches, one.block_threads);
        simplicity(self).cmp(&simplicity(other)).then_with(|| self.cmp(other))
    }
}

impl fmt::Display for Candidate {
    /// `chunked, 4 launches of 4096 items, block 256`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launches = if self.launches == 1 { "launch" } else { "launches" };
        let Self { strategy, launches: count, largest_chunk, .. } = self;
        write!(f, "{strategy}, {count} {launches} of {largest_chunk} items")?;
        for (name, value) in &self.parameters {
            write!(f, ", {name} {value}")?;
        }
        Ok(())
    }
}
