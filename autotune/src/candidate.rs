//! A launch configuration, and a candidate: one legal way to run it.

use core::cmp::Ordering;
use core::fmt;
use core::num::NonZeroU64;

use gridguard::profile::{Named, Objective, StoredChoice};
use gridguard::{
    BatchAxis, Choice, DeviceLimits, FormLimits, KernelLimits, LaunchLimits, LaunchRequest, Plan,
    Strategy, Violations, count,
};
use gridguard_pipeline::IN_FLIGHT;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The launch of a kernel with one set of parameters, for the planner.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchConfig {
    /// Names and values of the kernel's launch parameters; empty if it has none.
    pub parameters: Named,
    /// The launch over the whole problem.
    pub request: LaunchRequest,
    /// Its independent items. Without them, only a rewritten kernel can be split, and its blocks count as
    /// items.
    pub batch: Option<BatchAxis>,
    /// The limits of device and kernel.
    #[serde(serialize_with = "write_limits", deserialize_with = "read_limits")]
    pub limits: LaunchLimits,
}

impl LaunchConfig {
    /// A configuration without launch parameters.
    #[must_use]
    pub const fn new(
        request: LaunchRequest,
        batch: Option<BatchAxis>,
        limits: LaunchLimits,
    ) -> Self {
        Self { parameters: Vec::new(), request, batch, limits }
    }

    /// Plans the launch. An objective of memory limits the workspace of a chunk.
    ///
    /// # Errors
    ///
    /// [`Violations`] if the choice is not legal.
    pub fn plan(
        &self,
        choice: impl Into<Choice>,
        objective: Objective,
    ) -> Result<Plan, Violations> {
        let batch = self.batch_within(objective);
        Plan::new(&self.request, batch.as_ref(), &self.limits, choice.into())
    }

    pub(crate) fn batch_within(&self, objective: Objective) -> Option<BatchAxis> {
        self.batch.map(|batch| match objective {
            Objective::Memory { bytes_per_item, bytes } => batch.workspace(bytes_per_item, bytes),
            Objective::Throughput | Objective::Latency { .. } => batch,
        })
    }
}

/// One way to run the launch, validated by the planner.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// The kernel's launch parameters.
    pub parameters: Named,
    /// The choice that the planner gets.
    pub choice: StoredChoice,
    /// The strategy of the resulting plan.
    pub strategy: Strategy,
    /// The number of launches; for a pipeline, the number of chunks.
    pub launches: u64,
    /// Items of the largest launch or chunk.
    pub largest_chunk: u64,
    /// Threads per block; 0 if unknown, or for several kernels.
    pub block_threads: u64,
    /// Scratch bytes of all chunks of a pipeline in flight; 0 for a kernel.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub scratch_bytes: u64,
}

impl Candidate {
    /// One launch of all items, with a block of unknown size.
    pub(crate) const fn whole(parameters: Named, items: u64) -> Self {
        Self {
            parameters,
            choice: StoredChoice::Whole,
            strategy: Strategy::Whole,
            launches: 1,
            largest_chunk: items,
            block_threads: 0,
            scratch_bytes: 0,
        }
    }

    /// The order that decides ties, after the default: less scratch, fewer launches, smaller blocks,
    /// then an arbitrary but fixed order.
    pub(crate) fn tie_order(&self, other: &Self) -> Ordering {
        let simplicity = |one: &Self| (one.scratch_bytes, one.launches, one.block_threads);
        simplicity(self).cmp(&simplicity(other)).then_with(|| self.cmp(other))
    }

    /// Whether both have the same plan, even from different choices.
    #[must_use]
    pub fn is_same_plan(&self, other: &Self) -> bool {
        self.plan() == other.plan()
    }

    pub(crate) fn plan(&self) -> (Strategy, u64, u64, &Named) {
        (self.strategy, self.launches, self.largest_chunk, &self.parameters)
    }

    /// Items of the largest launch, or of the first chunks in flight.
    pub(crate) fn items_at_once(&self) -> u64 {
        let in_flight = self.parameters.iter().find(|(name, _)| name == IN_FLIGHT);
        self.largest_chunk.saturating_mul(in_flight.map_or(1, |(_, chunks)| *chunks))
    }

    /// Whether its workspace or scratch is within the objective.
    pub(crate) fn is_within(&self, objective: Objective) -> bool {
        let Objective::Memory { bytes_per_item, bytes } = objective else { return true };
        let workspace = self.largest_chunk.checked_mul(bytes_per_item);
        let all = workspace.and_then(|workspace| workspace.checked_add(self.scratch_bytes));
        all.is_some_and(|all| all <= bytes)
    }
}

impl fmt::Display for Candidate {
    /// `chunked, 4 launches of 4096 items, block 256`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (launches, items) = (count(self.launches, "launch"), count(self.largest_chunk, "item"));
        write!(f, "{}, {launches} of {items}", self.strategy)?;
        for (name, value) in &self.parameters {
            write!(f, ", {name} {value}")?;
        }
        match self.scratch_bytes {
            0 => Ok(()),
            bytes => write!(f, ", {} of scratch", count(bytes, "byte")),
        }
    }
}

/// The choice of chunks of at most `items`; zero counts as one.
pub(crate) fn chunked(items: u64) -> StoredChoice {
    StoredChoice::Chunked { max_items: NonZeroU64::new(items).unwrap_or(NonZeroU64::MIN) }
}

/// `items`, half of them, a quarter, and so on, down to one.
pub(crate) fn halves(items: u64) -> impl Iterator<Item = u64> {
    core::iter::successors(Some(items), |items| (*items > 1).then(|| items.div_ceil(2)))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Writes the limits of the device, the kernel and its rewritten forms, without their identity.
fn write_limits<S: Serializer>(limits: &LaunchLimits, to: S) -> Result<S::Ok, S::Error> {
    let forms = limits.form_limits().map(|forms| {
        let FormLimits { shifted, folded, reads_block_index, reads_grid_size } = forms;
        ([shifted, folded], reads_block_index, reads_grid_size)
    });
    (limits.device(), limits.kernel(), forms).serialize(to)
}

fn read_limits<'a, D: Deserializer<'a>>(from: D) -> Result<LaunchLimits, D::Error> {
    type Forms = ([KernelLimits; 2], [bool; 3], [bool; 3]);
    type Limits = (DeviceLimits, KernelLimits, Option<Forms>);
    let (device, kernel, forms) = Limits::deserialize(from)?;
    Ok(match forms {
        Some(([shifted, folded], reads_block_index, reads_grid_size)) => {
            let forms = FormLimits { shifted, folded, reads_block_index, reads_grid_size };
            LaunchLimits::rewritten(device, kernel, forms)
        }
        None => LaunchLimits::new(device, kernel),
    })
}

/// Chunk sizes below the whole batch. Twelve doublings lead from the whole batch to 4,096 launches, whose
/// overhead alone takes milliseconds.
pub(crate) const MAX_CHUNK_SIZES: usize = 12;
