//! A launch configuration, and one candidate: a legal way to run it.

use core::cmp::Ordering;
use core::fmt;
use std::sync::Arc;

use gridguard::profile::{Named, StoredChoice};
use gridguard::{
    BatchAxis, DeviceLimits, FormLimits, KernelLimits, LaunchLimits, LaunchRequest, Strategy,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The launch of a kernel with one set of parameters, from which candidates are planned.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchConfig {
    /// Names and values of the kernel's launch parameters; empty if it has none.
    pub parameters: Named,
    /// The launch over the whole problem.
    pub request: LaunchRequest,
    /// Its independent items.
    pub batch: BatchAxis,
    /// The limits of device and kernel.
    #[serde(serialize_with = "write_limits", deserialize_with = "read_limits")]
    pub limits: LaunchLimits,
}

/// One way to run the launch, validated by the planner.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// The kernel's launch parameters.
    pub parameters: Named,
    /// What the planner is asked for.
    pub choice: StoredChoice,
    /// The strategy of the resulting plan.
    pub strategy: Strategy,
    /// The number of its launches.
    pub launches: u64,
    /// Items of its largest launch.
    pub largest_chunk: u64,
    /// Threads per block.
    pub block_threads: u64,
}

impl Candidate {
    /// The order that decides ties, after the default: fewer launches, smaller blocks, then an
    /// arbitrary order that is the same in every run.
    #[must_use]
    pub fn tie_order(&self, other: &Self) -> Ordering {
        let simplicity = |one: &Self| (one.launches, one.block_threads);
        simplicity(self).cmp(&simplicity(other)).then_with(|| self.cmp(other))
    }

    /// Whether both stand for the same plan, whatever choice led to it.
    #[must_use]
    pub fn is_same_plan(&self, other: &Self) -> bool {
        let plan = |of: &Self| (of.strategy, of.launches, of.largest_chunk);
        plan(self) == plan(other) && self.parameters == other.parameters
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

/// Writes limits without their identity: of the device, of the kernel, and of its forms if it was
/// rewritten.
fn write_limits<S: Serializer>(limits: &LaunchLimits, to: S) -> Result<S::Ok, S::Error> {
    let forms = limits.forms().map(|forms| {
        let FormLimits { shifted, folded, reads_block_index, reads_grid_size } = forms;
        ([shifted.kernel(), folded.kernel()], reads_block_index, reads_grid_size)
    });
    (limits.device(), limits.kernel(), forms).serialize(to)
}

fn read_limits<'a, D: Deserializer<'a>>(from: D) -> Result<LaunchLimits, D::Error> {
    type Forms = ([KernelLimits; 2], [bool; 3], [bool; 3]);
    type Limits = (DeviceLimits, KernelLimits, Option<Forms>);
    let (device, kernel, forms) = Limits::deserialize(from)?;
    let device = Arc::new(device);
    let of = |kernel| LaunchLimits::new(Arc::clone(&device), kernel);
    let limits = of(kernel);
    Ok(match forms {
        Some(([shifted, folded], reads_block_index, reads_grid_size)) => {
            let (shifted, folded) = (of(shifted), of(folded));
            let forms = FormLimits { shifted, folded, reads_block_index, reads_grid_size };
            limits.with_forms(forms)
        }
        None => limits,
    })
}
