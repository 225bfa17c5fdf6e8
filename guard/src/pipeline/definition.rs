//! A pipeline's buffers and stages, checked.

use crate::launch::request::LaunchRequest;
use crate::limits::LaunchLimits;
use crate::pipeline::buffer::{Access, BufferSpec, Role};
use crate::pipeline::layout::Layout;
use crate::plan::batch::BatchAxis;

/// A batch of items that goes through several stages, chunk by chunk.
///
/// `B` is what a stage does: see [`HostPipeline`](super::HostPipeline). A `Pipeline<()>` can be planned
/// only.
#[derive(Debug)]
pub struct Pipeline<B> {
    pub(crate) definition: Definition,
    /// What each stage does.
    pub(crate) bodies: Vec<B>,
    /// The stage that panicked, after which the pipeline does not run again.
    pub(crate) poisoned: Option<String>,
}

/// All of a pipeline but what its stages do.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) id: u64,
    pub(crate) items: u64,
    pub(crate) buffers: Vec<BufferSpec>,
    /// Where each buffer is in the layout, if it is in scratch: its index among those of a fixed size, or
    /// among those per item.
    pub(crate) places: Vec<Option<usize>>,
    pub(crate) layout: Layout,
    pub(crate) stages: Vec<StageSpec>,
    /// Names and values of the launch parameters that the stages were built with.
    pub(crate) parameters: Vec<(String, u64)>,
    /// Hashes of the stages' code.
    #[cfg_attr(not(feature = "profile"), allow(dead_code, reason = "only a profile's key has it"))]
    pub(crate) sources: Vec<String>,
}

/// What a pipeline declares of a stage.
#[derive(Clone, Debug)]
pub(crate) struct StageSpec {
    pub(crate) name: String,
    /// Buffers by index, each once and in order, with their use.
    pub(crate) uses: Vec<(usize, Access)>,
    pub(crate) launch: Option<StageLaunch>,
    /// Chunks are multiples of it.
    pub(crate) align: u64,
    /// Items of a chunk.
    pub(crate) at_most: u64,
    /// Bytes an item, and of a fixed size, of the scratch that lives at this stage.
    pub(crate) live: (u64, u64),
}

/// The launch of a stage's kernel for the whole batch.
#[derive(Clone, Debug)]
pub(crate) struct StageLaunch {
    pub(crate) request: LaunchRequest,
    pub(crate) batch: BatchAxis,
    pub(crate) limits: LaunchLimits,
}

impl Definition {
    /// Whether chunks must run one after another.
    pub(crate) fn is_sequential(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.role == Role::Accumulator)
    }

    /// Whether a chunk can go through its stages again after one of them failed: not if that has
    /// changed what they read.
    pub(crate) fn can_run_again(&self) -> bool {
        let changes = |role| matches!(role, Role::InPlace | Role::Accumulator);
        !self.buffers.iter().any(|buffer| changes(buffer.role))
    }

    /// The buffers in host memory that are copied to the device before the stage at `index`, or `back`
    /// after it, and their bytes an item.
    #[cfg(feature = "cuda")]
    pub(crate) fn copies(&self, index: usize, back: bool) -> impl Iterator<Item = (usize, u64)> {
        let uses = self.stages.get(index).into_iter().flat_map(|stage| &stage.uses);
        uses.filter_map(move |&(buffer, _)| {
            let BufferSpec { role, extent, on_host: true, lifetime: (first, last), .. } =
                self.buffers.get(buffer)?
            else {
                return None;
            };
            let (at, nothing) = if back { (last, Role::Input) } else { (first, Role::Output) };
            let bytes = extent.per_item();
            (*at == index && *role != nothing).then_some((buffer, bytes))
        })
    }

    /// Bytes an item of the caller's buffers.
    pub(crate) fn callers_bytes_per_item(&self) -> u64 {
        let bytes = self.buffers.iter().filter(|buffer| buffer.role != Role::Scratch);
        let per_item = bytes.map(|buffer| buffer.extent.per_item());
        per_item.fold(0, u64::saturating_add)
    }
}

/// Stands for the name of a buffer that another pipeline's handle is for.
pub(crate) const OTHER_PIPELINE: &str = "a buffer of another pipeline";
