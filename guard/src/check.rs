//! A launch described as data, and the verdict on it as data: what the command `gridguard check`
//! reads and writes, and what the launch corpus holds.

use serde::{Deserialize, Serialize};

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::launch::violation::Violations;
use crate::limits::{DeviceLimits, KernelLimits, LaunchLimits};
use crate::plan::batch::BatchAxis;
use crate::plan::choice::{Choice, Strategy};
use crate::plan::chunk::Chunk;
use crate::plan::explain::explain_whole;
use crate::plan::launches::Plan;

/// A launch with what is known of its kernel and its batch. All but `grid` and `block` may be left
/// out; an unknown field is an error.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchDescription {
    /// The launch's name, repeated in the verdict.
    #[serde(default)]
    pub name: String,
    /// Blocks of the grid.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory of a block in bytes.
    #[serde(default)]
    pub dynamic_shared_bytes: u64,
    /// Blocks of a cluster.
    #[serde(default)]
    pub cluster: Option<Dim3>,
    /// Whether the launch is cooperative.
    #[serde(default)]
    pub cooperative: bool,
    /// Bytes of kernel parameters.
    #[serde(default)]
    pub parameter_bytes: u64,
    /// The launch's priority.
    #[serde(default)]
    pub priority: Option<i32>,
    /// Whether the launch may begin before the one before it has ended.
    #[serde(default)]
    pub dependent: bool,
    /// What is known of the kernel.
    #[serde(default)]
    pub kernel: KernelDescription,
    /// The axis with independent items.
    #[serde(default)]
    pub batch: Option<BatchDescription>,
}

/// What is known of a kernel; see [`KernelLimits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KernelDescription {
    /// Threads of a block by launch bounds and registers.
    pub max_threads_per_block: Option<u64>,
    /// Registers of a thread.
    pub registers_per_thread: u64,
    /// Static shared memory in bytes.
    pub static_shared_bytes: u64,
    /// Dynamic shared memory in bytes that the kernel opted in to; without it what is left of
    /// 48 KiB beside the static part.
    pub max_dynamic_shared_bytes: Option<u64>,
}

/// The axis with independent items; see [`BatchAxis`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchDescription {
    /// The axis.
    pub axis: Axis,
    /// Items along it.
    pub items: u64,
    /// Blocks of an item.
    #[serde(default = "one")]
    pub blocks_per_item: u64,
    /// Chunks start at multiples of so many items.
    #[serde(default = "one")]
    pub align: u64,
    /// Elements that an item addresses, for 32-bit indices.
    #[serde(default)]
    pub elements_per_item: u64,
    /// Bits of the kernel's index arithmetic: 32 or 64.
    #[serde(default = "sixty_four")]
    pub index_bits: u32,
    /// Workspace of an item in bytes.
    #[serde(default)]
    pub workspace_bytes_per_item: u64,
    /// Memory for workspace in bytes; without it the device's.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

const fn one() -> u64 {
    1
}

const fn sixty_four() -> u32 {
    64
}

/// A description that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, expected is {expected}")]
pub struct DescriptionError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// What it may be.
    pub expected: &'static str,
}

/// Whether a launch can be made, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Outcome {
    /// As it is.
    Legal,
    /// In chunks.
    Chunked,
    /// Not at all.
    Rejected,
}

/// The verdict on a described launch.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The launch's name.
    pub name: String,
    /// Whether it can be made.
    #[serde(rename = "verdict")]
    pub outcome: Outcome,
    /// What is wrong with it as one launch; for a rejected one also why it cannot be split.
    pub violations: Violations,
    /// The plan, unless it is rejected.
    pub plan: Option<PlanRecord>,
}

/// A plan as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanRecord {
    /// How the launch is served.
    pub strategy: Strategy,
    /// The launches, in order; at most [`LISTED_LAUNCHES`] of them.
    pub launches: Vec<LaunchRecord>,
    /// Launches beyond those listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted_launches: u64,
}

/// One launch of a plan as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LaunchRecord {
    /// Its first item.
    pub start: u64,
    /// Its items.
    pub items: u64,
    /// Its grid in blocks.
    pub grid: [u32; 3],
}

/// Launches that a [`PlanRecord`] lists: an absurd request must not fill the memory.
pub const LISTED_LAUNCHES: usize = 4096;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Serialize for Violations {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl LaunchDescription {
    /// The request part.
    pub const fn request(&self) -> LaunchRequest {
        LaunchRequest {
            grid: self.grid,
            block: self.block,
            dynamic_shared_bytes: self.dynamic_shared_bytes,
            cluster: self.cluster,
            cooperative: self.cooperative,
            parameter_bytes: self.parameter_bytes,
            priority: self.priority,
            dependent: self.dependent,
        }
    }

    /// The limits of the described kernel on `device`.
    #[must_use]
    pub fn limits(&self, device: &DeviceLimits) -> LaunchLimits {
        let KernelDescription {
            max_threads_per_block,
            registers_per_thread,
            static_shared_bytes,
            max_dynamic_shared_bytes,
        } = self.kernel;
        let name = if self.name.is_empty() { "of the launch" } else { &self.name };
        let unknown = KernelLimits::unknown(name);
        let plain = device.max_shared_bytes_per_block.saturating_sub(static_shared_bytes);
        LaunchLimits::new(
            device.clone(),
            KernelLimits {
                max_threads_per_block: max_threads_per_block
                    .unwrap_or(unknown.max_threads_per_block),
                registers_per_thread,
                static_shared_bytes,
                max_dynamic_shared_bytes: max_dynamic_shared_bytes.unwrap_or(plain),
                ..unknown
            },
        )
    }

    /// The batch part, on a device with `memory_bytes`.
    ///
    /// # Errors
    ///
    /// [`DescriptionError`] for an index width other than 32 and 64, 32-bit indices of items without
    /// elements, or zero blocks or alignment.
    pub fn batch(&self, memory_bytes: u64) -> Result<Option<BatchAxis>, DescriptionError> {
        let Some(batch) = self.batch else {
            return Ok(None);
        };
        for (field, value) in
            [("batch.blocks_per_item", batch.blocks_per_item), ("batch.align", batch.align)]
        {
            if value == 0 {
                return Err(DescriptionError { field, value, expected: "at least 1" });
            }
        }
        let mut axis = BatchAxis::new(batch.axis, batch.items)
            .blocks_per_item(batch.blocks_per_item)
            .align(batch.align);
        match batch.index_bits {
            // Indices of nothing bound nothing.
            32 if batch.elements_per_item == 0 => {
                let (field, expected) =
                    ("batch.elements_per_item", "at least 1 with 32-bit indices");
                return Err(DescriptionError { field, value: 0, expected });
            }
            32 => axis = axis.index_32_bits(batch.elements_per_item),
            64 => {}
            bits => {
                let field = "batch.index_bits";
                return Err(DescriptionError { field, value: bits.into(), expected: "32 or 64" });
            }
        }
        if batch.workspace_bytes_per_item > 0 {
            let memory = batch.memory_bytes.unwrap_or(memory_bytes);
            axis = axis.workspace(batch.workspace_bytes_per_item, memory);
        }
        Ok(Some(axis))
    }

    /// The verdict on the launch under the limits of `device`.
    ///
    /// # Errors
    ///
    /// [`DescriptionError`] where the description contradicts itself.
    pub fn check(&self, device: &DeviceLimits) -> Result<Verdict, DescriptionError> {
        let request = self.request();
        let limits = self.limits(device);
        let batch = self.batch(device.memory_bytes)?;
        let name = self.name.clone();
        Ok(match Plan::new(&request, batch.as_ref(), &limits, Choice::AUTOMATIC) {
            Ok(plan) => Verdict {
                name,
                outcome: match plan.strategy() {
                    Strategy::Chunked => Outcome::Chunked,
                    Strategy::Whole | Strategy::Folded => Outcome::Legal,
                },
                violations: explain_whole(&request, batch.as_ref(), &limits),
                plan: Some(PlanRecord::new(&plan)),
            },
            Err(violations) => Verdict { name, outcome: Outcome::Rejected, violations, plan: None },
        })
    }
}

impl PlanRecord {
    /// `plan` as data.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let launches: Vec<_> = plan
            .launches()
            .take(LISTED_LAUNCHES)
            .map(|planned| {
                let Chunk { start, items, .. } = planned.chunk;
                LaunchRecord { start, items, grid: planned.launch.grid() }
            })
            .collect();
        let listed = u64::try_from(launches.len()).unwrap_or(u64::MAX);
        Self { strategy: plan.strategy(), launches, omitted_launches: plan.len() - listed }
    }

    /// How many launches the plan has, also those not listed.
    #[must_use]
    pub fn len(&self) -> u64 {
        u64::try_from(self.launches.len()).unwrap_or(u64::MAX).saturating_add(self.omitted_launches)
    }

    /// Whether the plan has no launch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
