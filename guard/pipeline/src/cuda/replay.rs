//! Runs a pipeline's plan as one CUDA graph: captured once, and launched over the same memory.

use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result};
use gridguard::Guard;
use gridguard::cuda::capture_launches;
use gridguard::cuda::schedule::{Scheduler, driver_error};

use crate::cuda::capture::end_uses;
use crate::cuda::graph::PipelineGraph;
use crate::cuda::memory::DeviceMemory;
use crate::cuda::streams::{Capture, OnStreams, check_captures, join};
use crate::cuda::views::DeviceRange;
use crate::error::Error;
use crate::pipeline::{Pipeline, StageWork};
use crate::plan::PipelinePlan;
use crate::progress::PipelineRun;
use crate::run::run;

impl Pipeline<'_> {
    /// Captures `plan`, unless it is the last graph that ran, and launches its graph on the first stream.
    pub(crate) fn run_graph(
        &mut self,
        guard: &Guard,
        plan: &PipelinePlan,
        id: u64,
        memory: &DeviceMemory<'_>,
        caller: &'static Location<'static>,
    ) -> Result<PipelineRun, Error> {
        if memory.monitor.is_some() {
            return Err(Error::unrunnable(
                "a graph submits all chunks at once and cannot be monitored: remove the monitor, or \
                 run the plan without as_graph",
            ));
        }
        for (body, spec) in self.work.iter().zip(&self.definition.stages) {
            if matches!(body, StageWork::Call { in_graphs: false, .. }) {
                let message = format!(
                    "stage {} is a call, whose work a graph may not repeat: declare it with \
                     call_in_graphs, or run the pipeline without a graph",
                    spec.name
                );
                return Err(Error::unrunnable(message).at_stage(&spec.name));
            }
        }
        let buffers = memory.ranges(&self.definition)?;
        let captured = self.graph.as_ref().filter(|graph| graph.id == id);
        for (index, spec) in self.definition.buffers.iter().enumerate() {
            if captured.is_some_and(|graph| graph.buffers.get(index) != buffers.get(index)) {
                return Err(Error::memory(format!(
                    "buffer {} is other memory than the graph was captured with: give the same, or \
                     run a new plan.as_graph()",
                    spec.name
                )));
            }
        }
        let is_captured = captured.is_some();
        let scheduler = self.scheduler(guard, memory, caller)?;
        if !is_captured {
            // Frees the scratch of the graph before.
            self.graph = None;
            self.graph =
                Some(self.capture(scheduler, plan, id, memory.stream.context(), buffers)?);
        }
        let Some(graph) = &self.graph else { return Ok(PipelineRun::default()) };
        // Stages and observers ran since, which may have begun a capture.
        scheduler.bind().map_err(Error::device)?;
        check_captures(&scheduler, memory.stream, &[])?;
        graph.launch(&scheduler, memory)?;
        Ok(graph.run.clone())
    }

    fn capture(
        &mut self,
        scheduler: Scheduler<'_>,
        plan: &PipelinePlan,
        id: u64,
        context: &Arc<CudaContext>,
        buffers: Vec<Option<DeviceRange>>,
    ) -> Result<PipelineGraph, Error> {
        scheduler.check_graphs().map_err(Error::device)?;
        // New streams: work that other threads submit to the caller's would become part of the graph.
        let failed = |call, error| Error::device(driver_error(context, call, error));
        let new_stream = || context.new_stream().map_err(|error| failed("cuStreamCreate", error));
        let order = new_stream()?;
        let more = (1..plan.in_flight()).map(|_| new_stream()).collect::<Result<Vec<_>, _>>()?;
        let (streams, ranges) = ((&order, more.as_slice()), buffers.clone());
        let mut backend = OnStreams::new(scheduler, self, ranges, streams);
        backend.capture = Capture::Wanted;
        // SAFETY: the pipeline keeps kernels and scratch, and the caller of `call_in_graphs` has promised
        // to keep the rest. The caller's memory is given again for each launch of the graph.
        let ran = unsafe { capture_launches(|| run(backend.definition, plan, &mut backend, None)) };
        let ended = backend.end_capture();
        let (launches, scratch) = (backend.launches, core::mem::take(&mut backend.scratch));
        drop(backend);
        let run = ran?;
        let graph = ended.map_err(|error| failed("cuStreamEndCapture", error))?;
        Ok(PipelineGraph { id, graph, order, _scratch: scratch, buffers, run, launches })
    }
}

impl PipelineGraph {
    /// Launches the graph after earlier work on the first stream of `memory`. The context of guard, memory and
    /// kernels is current.
    fn launch(&self, scheduler: &Scheduler<'_>, memory: &DeviceMemory<'_>) -> Result<(), Error> {
        let Some(exec) = &self.graph else { return Ok(()) };
        let (stream, order) = (memory.stream, &self.order);
        let failed = |call, error| Error::device(driver_error(stream.context(), call, error));
        stream.join(order).map_err(|error| failed("cuStreamWaitEvent", error))?;
        let _in_use = memory.uses.begin();
        // SAFETY: the graph is alive, and `Pipeline::scheduler` checked that the stream is of its context, which is
        // current. The memory that the graph uses lives until it has run: the caller's memory is the
        // captured memory, and its `Uses` order other uses before and after this stream's work. The
        // pipeline owns scratch, kernels and calls, and drops the graph before them, which waits for
        // `order`. The caller of `call_in_graphs` vouches for the work of a call.
        let launched = unsafe { result::graph::launch(exec.cu_graph_exec(), stream.cu_stream()) };
        join(order, stream);
        if launched.is_ok() {
            scheduler.count(self.launches, true);
        }
        let ended = end_uses(scheduler, &memory.uses);
        launched.map_err(|error| failed("cuGraphLaunch", error)).and(ended)
    }
}
