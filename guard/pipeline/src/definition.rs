//! The definition of a checked pipeline: its buffers and its stages, without their work.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::buffer::{Access, BufferId, BufferSpec, Role};
use crate::layout::Layout;
use gridguard::{BatchAxis, LaunchLimits, LaunchRequest};

/// Everything about a pipeline except the work of its stages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definition {
    pub(crate) id: u64,
    pub(crate) items: u64,
    pub(crate) buffers: Vec<BufferSpec>,
    pub(crate) layout: Layout,
    pub(crate) stages: Vec<StageSpec>,
    /// Names and values of the launch parameters that the stages were built with.
    pub(crate) parameters: Vec<(String, u64)>,
    /// Hashes of the stages' code.
    #[cfg_attr(not(feature = "profile"), allow(dead_code, reason = "only a profile's key has it"))]
    pub(crate) sources: Vec<String>,
}

/// The declaration of a stage.
#[derive(Clone, Debug)]
pub(crate) struct StageSpec {
    pub(crate) name: String,
    /// Buffers by index, each once and in order, with their use.
    pub(crate) uses: Vec<(usize, Access)>,
    pub(crate) launch: Option<StageLaunch>,
    /// Chunks are multiples of it.
    pub(crate) align: u64,
    /// The most items of a chunk.
    pub(crate) at_most: u64,
}

/// The launch of a stage's kernel for the whole batch.
#[derive(Clone, Debug)]
pub(crate) struct StageLaunch {
    pub(crate) request: LaunchRequest,
    pub(crate) batch: BatchAxis,
    pub(crate) limits: LaunchLimits,
}

impl Definition {
    /// The declaration of a buffer, if it is of this pipeline.
    pub(crate) fn spec(&self, buffer: BufferId) -> Option<&BufferSpec> {
        self.buffers.get(buffer.index).filter(|_| buffer.pipeline == self.id)
    }

    /// The name of a buffer, for messages.
    pub(crate) fn buffer_name(&self, buffer: BufferId) -> String {
        self.spec(buffer).map_or_else(|| OTHER_PIPELINE.to_owned(), |spec| spec.name.clone())
    }

    /// Whether chunks must run one after another.
    pub(crate) fn is_sequential(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.role == Role::Accumulator)
    }

    /// Whether a chunk can run again after one of its stages failed. It cannot if a stage changes its own
    /// input.
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
            let spec = self.buffers.get(buffer).filter(|spec| spec.on_host)?;
            let (first, last) = spec.lifetime;
            let (at, not_copied) = if back { (last, Role::Input) } else { (first, Role::Output) };
            (at == index && spec.role != not_copied).then_some((buffer, spec.extent.per_item()))
        })
    }

    /// Bytes an item of the caller's buffers; saturated.
    pub(crate) fn callers_bytes_per_item(&self) -> u64 {
        let callers = self.buffers.iter().filter(|buffer| buffer.role != Role::Scratch);
        callers.map(|buffer| buffer.extent.per_item()).fold(0, u64::saturating_add)
    }
}

/// Identifies a pipeline or a graph in this process.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Stands for the name of a buffer of another pipeline.
const OTHER_PIPELINE: &str = "a buffer of another pipeline";
