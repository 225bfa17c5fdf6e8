//! A pipeline: its definition and the work of each stage.

use core::fmt;
use core::marker::PhantomData;

#[cfg(feature = "cuda")]
use crate::cuda::pipeline::device_stage::DeviceStage;
#[cfg(feature = "cuda")]
use crate::cuda::pipeline::graph::PipelineGraph;
use crate::pipeline::definition::Definition;
#[cfg(feature = "host")]
use crate::pipeline::host_memory::HostCall;

/// A batch of items that goes through several stages, chunk by chunk: `Guard::run_pipeline`.
///
/// The stages run on the host or on a CUDA device, depending on how they were declared.
#[derive(Debug)]
pub struct Pipeline<'a> {
    pub(crate) definition: Definition,
    /// The graph of the last plan that ran as one. Dropped before the kernels that it launches.
    #[cfg(feature = "cuda")]
    pub(crate) graph: Option<PipelineGraph>,
    pub(crate) bodies: Vec<Body<'a>>,
    /// The stage that panicked, after which the pipeline does not run again.
    pub(crate) poisoned: Option<String>,
}

/// The work of a stage.
pub(crate) enum Body<'a> {
    /// None: the stage can only be planned.
    Outline(PhantomData<&'a ()>),
    #[cfg(feature = "host")]
    Host(Box<HostCall<'a>>),
    #[cfg(feature = "cuda")]
    Device(DeviceStage<'a>),
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
