//! A pipeline: its definition and the work of each stage.

use core::fmt;
use core::marker::PhantomData;

#[cfg(feature = "cuda")]
use crate::cuda::{
    graph::PipelineGraph,
    views::{Argument, Call},
};
use crate::definition::Definition;
use crate::host_memory::HostCall;
#[cfg(feature = "cuda")]
use crate::product::ProductStage;
#[cfg(feature = "cuda")]
use gridguard::cuda::Kernel;

/// Several stages that process a batch of items chunk by chunk: [`Self::run`].
///
/// The stages run on the host or on a CUDA device, depending on how they were declared.
#[derive(Debug)]
pub struct Pipeline<'a> {
    pub(crate) definition: Definition,
    /// The graph of the last plan that ran as one. Dropped before the kernels that it launches.
    #[cfg(feature = "cuda")]
    pub(crate) graph: Option<PipelineGraph>,
    pub(crate) work: Vec<StageWork<'a>>,
    /// The stage that panicked. The pipeline does not run again.
    pub(crate) poisoned: Option<String>,
}

/// The work of a stage.
pub(crate) enum StageWork<'a> {
    /// None: the stage can only be planned.
    Outline(PhantomData<&'a ()>),
    Host(Box<HostCall<'a>>),
    #[cfg(feature = "cuda")]
    Kernel {
        kernel: Kernel,
        arguments: Vec<Argument<'a>>,
    },
    #[cfg(feature = "cuda")]
    Product(Box<ProductStage>),
    #[cfg(feature = "cuda")]
    Call {
        call: Box<Call<'a>>,
        /// Whether a graph may repeat its work.
        in_graphs: bool,
    },
}

impl<'a> Pipeline<'a> {
    pub(crate) const fn new(definition: Definition, work: Vec<StageWork<'a>>) -> Self {
        Self {
            definition,
            #[cfg(feature = "cuda")]
            graph: None,
            work,
            poisoned: None,
        }
    }

    /// The number of items.
    pub const fn items(&self) -> u64 {
        self.definition.items
    }

    /// The launch parameters that the stages were built with.
    pub fn parameters(&self) -> &[(String, u64)] {
        &self.definition.parameters
    }

    /// The same pipeline without the work of its stages. Plans of one are plans of the other.
    pub fn outline(&self) -> Pipeline<'static> {
        let work = self.work.iter().map(|_| StageWork::Outline(PhantomData)).collect();
        Pipeline::new(self.definition.clone(), work)
    }
}

impl StageWork<'_> {
    /// Where the stage runs; `None` without work.
    pub(crate) const fn place(&self) -> Option<&'static str> {
        match self {
            Self::Outline(_) => None,
            Self::Host(_) => Some(ON_HOST),
            #[cfg(feature = "cuda")]
            Self::Kernel { .. } | Self::Product(_) | Self::Call { .. } => Some(ON_DEVICE),
        }
    }
}

pub(crate) const ON_HOST: &str = "the host";
#[cfg(feature = "cuda")]
pub(crate) const ON_DEVICE: &str = "a device";

impl fmt::Debug for StageWork<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StageWork").field(&self.place()).finish()
    }
}
