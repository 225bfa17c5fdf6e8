//! A pipeline's plan as one CUDA graph, with everything that its launches use.

use std::sync::Arc;

use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, result};

use crate::cuda::views::DeviceRange;
use crate::progress::PipelineRun;
use gridguard::cuda::schedule::{bind, while_capturing};

/// A plan that was captured as one CUDA graph. Dropping it waits for its launches.
#[derive(derive_more::Debug)]
#[debug("PipelineGraph({run:?})")]
pub(crate) struct PipelineGraph {
    /// The [id](crate::PipelinePlan::as_graph) of the plan.
    pub(crate) id: u64,
    /// `None` for a plan without chunks.
    pub(crate) graph: Option<CudaGraph>,
    /// Waits for each launch, which waits for it: launches run one after another.
    pub(crate) order: Arc<CudaStream>,
    /// Freed on `order`.
    pub(crate) _scratch: Vec<CudaSlice<u8>>,
    /// The caller's memory that the graph uses.
    pub(crate) buffers: Vec<Option<DeviceRange>>,
    pub(crate) run: PipelineRun,
    /// Kernel launches of the graph.
    pub(crate) launches: u64,
}

// SAFETY: graphs belong to no thread. This one is used through `&mut Pipeline` or dropped, and both make its
// context current.
unsafe impl Send for PipelineGraph {}

impl Drop for PipelineGraph {
    fn drop(&mut self) {
        // Only the driver knows the memory that the work of a call uses. Not through cudarc's context, which would
        // neither wait nor become current if it has recorded a failure.
        let context = self.order.context();
        if bind(context).is_ok() {
            // SAFETY: the stream is alive, and its context current.
            let wait = || unsafe { result::stream::synchronize(self.order.cu_stream()) };
            context.record_err(while_capturing(wait));
        }
    }
}
