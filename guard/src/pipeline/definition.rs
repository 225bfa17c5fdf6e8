//! A checked pipeline: its buffers, its stages and the work of each stage.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::launch::request::LaunchRequest;
use crate::limits::LaunchLimits;
use crate::pipeline::buffer::{Access, BufferSpec, Role};
#[cfg(any(feature = "cuda", feature = "host"))]
use crate::pipeline::error::RunError;
use crate::pipeline::layout::Layout;
#[cfg(any(feature = "cuda", feature = "host"))]
use crate::pipeline::plan::PipelinePlan;
use crate::plan::batch::BatchAxis;

/// A batch of items that goes through several stages, chunk by chunk: `Guard::run_pipeline`.
///
/// The stages run on the host or on a CUDA device, depending on how they were declared.
#[derive(Debug)]
pub struct Pipeline<'a> {
    pub(crate) definition: Definition,
    /// The graph of the last plan that ran as one. Dropped before the kernels that it launches.
    #[cfg(feature = "cuda")]
    pub(crate) graph: Option<crate::cuda::PipelineGraph>,
    pub(crate) bodies: Vec<Body<'a>>,
    /// The stage that panicked, after which the pipeline does not run again.
    pub(crate) poisoned: Option<String>,
}

/// The work of a stage.
pub(crate) enum Body<'a> {
    /// None: the stage can only be planned.
    Outline(PhantomData<&'a ()>),
    #[cfg(feature = "host")]
    Host(Box<crate::pipeline::host::HostCall<'a>>),
    #[cfg(feature = "cuda")]
    Device(crate::cuda::DeviceStage<'a>),
}

/// Everything about a pipeline except the work of its stages.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) id: u64,
    pub(crate) items: u64,
    pub(crate) buffers: Vec<BufferSpec>,
    /// For each buffer in scratch, its index in the layout: among buffers of a fixed size, or among
    /// buffers per item.
    pub(crate) places: Vec<Option<usize>>,
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
    /// Bytes an item, and bytes of a fixed size, of the scratch that is live at this stage.
    pub(crate) live: (u64, u64),
}

/// The launch of a stage's kernel for the whole batch.
#[derive(Clone, Debug)]
pub(crate) struct StageLaunch {
    pub(crate) request: LaunchRequest,
    pub(crate) batch: BatchAxis,
    pub(crate) limits: LaunchLimits,
}

impl Pipeline<'_> {
    /// The number of items.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.definition.items
    }

    /// The launch parameters that the stages were built with.
    #[must_use]
    pub fn parameters(&self) -> &[(String, u64)] {
        &self.definition.parameters
    }

    /// The same pipeline without the work of its stages. Plans of one are plans of the other.
    #[must_use]
    pub fn outline(&self) -> Pipeline<'static> {
        Pipeline {
            definition: self.definition.clone(),
            #[cfg(feature = "cuda")]
            graph: None,
            bodies: self.bodies.iter().map(|_| Body::Outline(PhantomData)).collect(),
            poisoned: None,
        }
    }

    /// Checks that `plan` is for this pipeline, and that all stages run on the device or, if `on_host`, on
    /// the host.
    #[cfg(any(feature = "cuda", feature = "host"))]
    pub(crate) fn check_run(&self, plan: &PipelinePlan, on_host: bool) -> Result<(), RunError> {
        if let Some(stage) = &self.poisoned {
            return Err(RunError::Poisoned(stage.clone()));
        }
        if plan.pipeline() != self.definition.id {
            return Err(RunError::OtherPlan);
        }
        let place = |on_host| if on_host { "the host" } else { "a device" };
        for (body, spec) in self.bodies.iter().zip(&self.definition.stages) {
            let stage = || spec.name.clone();
            let runs_on_host = match body {
                Body::Outline(_) => return Err(RunError::Outline(stage())),
                #[cfg(feature = "host")]
                Body::Host(_) => true,
                #[cfg(feature = "cuda")]
                Body::Device(_) => false,
            };
            if runs_on_host != on_host {
                let (runs_on, memory_on) = (place(runs_on_host), place(on_host));
                return Err(RunError::OtherBackend { stage: stage(), runs_on, memory_on });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outline(_) => f.write_str("Outline"),
            #[cfg(feature = "host")]
            Self::Host(_) => f.write_str("Host"),
            #[cfg(feature = "cuda")]
            Self::Device(stage) => stage.fmt(f),
        }
    }
}

impl Definition {
    /// Whether chunks must run one after another.
    pub(crate) fn is_sequential(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.role == Role::Accumulator)
    }

    /// Whether a chunk can run again after one of its stages failed. It cannot if a stage changes what it
    /// reads.
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
pub(crate) const OTHER_PIPELINE: &str = "a buffer of another pipeline";
