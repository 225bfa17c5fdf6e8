//! A pipeline's plan as one CUDA graph, with everything that its launches use.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, result};

use crate::cuda::driver::symbols::Driver;
use crate::cuda::launch::capture::RelaxedCapture;
use crate::cuda::pipeline::device_stage::DeviceRange;
use crate::pipeline::progress::PipelineRun;

/// A plan that was captured as one CUDA graph. Dropping it waits for its launches.
pub(crate) struct PipelineGraph {
    /// The [id](crate::pipeline::PipelinePlan::as_graph) of the plan.
    pub(super) id: u64,
    /// `None` for a plan without chunks.
    pub(super) graph: Option<CudaGraph>,
    /// Waits for each launch, which waits for it: launches run one after another.
    pub(super) order: Arc<CudaStream>,
    /// Freed on `order`.
    pub(super) _scratch: Vec<CudaSlice<u8>>,
    /// The caller's memory that the graph uses.
    pub(super) buffers: Vec<Option<DeviceRange>>,
    pub(super) run: PipelineRun,
    /// Kernel launches of the graph.
    pub(super) launches: u64,
}

// SAFETY: graphs belong to no thread. This one is used through `&mut Pipeline` or dropped, and both make its
// context current.
unsafe impl Send for PipelineGraph {}

impl Drop for PipelineGraph {
    fn drop(&mut self) {
        // Only the driver knows the memory that the work of a call uses. Not through cudarc's context, which would neither wait
        // nor become current if it has recorded a failure.
        let context = self.order.context();
        let Ok(driver) = Driver::get() else { return };
        if driver.bind(context.cu_ctx().cast()).is_ok() {
            let _relaxed = RelaxedCapture::begin(driver);
            // SAFETY: the stream is alive, and its context current.
            let waited = unsafe { result::stream::synchronize(self.order.cu_stream()) };
            context.record_err(waited);
        }
    }
}

impl fmt::Debug for PipelineGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineGraph").field("run", &self.run).finish_non_exhaustive()
    }
}
