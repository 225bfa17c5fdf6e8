//! Runs a pipeline's plan as one CUDA graph: captured once, and launched over the same memory.

use std::sync::Arc;

use cudarc::driver::{CudaStream, result};

use crate::cuda::arguments::uses::join;
use crate::cuda::driver::history::Watch;
use crate::cuda::driver::library::from_cudarc;
use crate::cuda::driver::symbols::Driver;
use crate::cuda::launch::capture::capture_launches;
use crate::cuda::pipeline::device_stage::DeviceRange;
use crate::cuda::pipeline::graph::PipelineGraph;
use crate::cuda::pipeline::memory::DeviceMemory;
use crate::cuda::pipeline::run::{Capture, OnStreams, bind_streams};
use crate::guard::Guard;
use crate::pipeline::bodies::{Body, Pipeline};
use crate::pipeline::error::{MemoryError, RunError};
use crate::pipeline::plan::PipelinePlan;
use crate::pipeline::progress::PipelineRun;
use crate::pipeline::run::run;

impl Guard {
    /// Captures `plan`, unless it is the last graph that ran, and launches its graph on the first stream.
    pub(super) fn run_graph(
        &self,
        pipeline: &mut Pipeline<'_>,
        plan: &PipelinePlan,
        id: u64,
        memory: &DeviceMemory<'_>,
        watch: Watch,
    ) -> Result<PipelineRun, RunError> {
        if memory.monitor.is_some() {
            return Err(RunError::MonitoredGraph);
        }
        for (body, spec) in pipeline.bodies.iter().zip(&pipeline.definition.stages) {
            if matches!(body, Body::Call { in_graphs: false, .. }) {
                return Err(RunError::NotCapturable(spec.name.clone()));
            }
        }
        let buffers = memory.ranges(&pipeline.definition)?;
        let captured = pipeline.graph.as_ref().filter(|graph| graph.id == id);
        for (index, spec) in pipeline.definition.buffers.iter().enumerate() {
            if captured.is_some_and(|graph| graph.buffers.get(index) != buffers.get(index)) {
                return Err(MemoryError::OtherMemory(spec.name.clone()).into());
            }
        }
        let is_captured = captured.is_some();
        let driver = self.bind_run(pipeline, memory)?;
        if !is_captured {
            // Frees the scratch of the graph before.
            pipeline.graph = None;
            let memory = (memory.stream, buffers);
            pipeline.graph = Some(self.capture(pipeline, plan, id, driver, memory, watch)?);
        }
        let Some(graph) = &pipeline.graph else { return Err(RunError::OtherPlan) };
        // Stages and observers ran since, which may have begun a capture.
        bind_streams(driver, memory.stream, &[])?;
        self.launch_graph(graph, memory)?;
        Ok(graph.run.clone())
    }

    /// The context of guard, memory and kernels is current.
    fn launch_graph(
        &self,
        graph: &PipelineGraph,
        memory: &DeviceMemory<'_>,
    ) -> Result<(), RunError> {
        let Some(exec) = &graph.graph else { return Ok(()) };
        let (stream, order) = (memory.stream, &graph.order);
        let failed =
            |call, error| RunError::device(from_cudarc(Some(stream.context()), call, error));
        stream.join(order).map_err(|error| failed("cuStreamWaitEvent", error))?;
        let _in_use = memory.args.uses().begin();
        // SAFETY: the graph is alive, and `bind_run` checked that the stream is of its context, which is
        // current. The memory that the graph uses lives until it has run: the caller's memory is the
        // captured memory, and its `Uses` order other uses before and after this stream's work. The
        // pipeline owns scratch, kernels and calls, and drops the graph before them, which waits for
        // `order`. The caller of `call_in_graphs` vouches for the work of a call.
        let launched = unsafe { result::graph::launch(exec.cu_graph_exec(), stream.cu_stream()) };
        join(order, stream);
        let captured = memory.args.uses().end();
        launched.map_err(|error| failed("cuGraphLaunch", error))?;
        if captured {
            return Err(MemoryError::Captured.into());
        }
        self.counters.ran(graph.launches);
        Ok(())
    }

    fn capture(
        &self,
        pipeline: &mut Pipeline<'_>,
        plan: &PipelinePlan,
        id: u64,
        driver: &'static Driver,
        (stream, buffers): (&Arc<CudaStream>, Vec<Option<DeviceRange>>),
        watch: Watch,
    ) -> Result<PipelineGraph, RunError> {
        driver.check_graphs().map_err(RunError::device)?;
        // New streams: work that other threads submit to the caller's would become part of the graph.
        let context = stream.context();
        let failed = |call, error| RunError::device(from_cudarc(Some(context), call, error));
        let new_stream = || context.new_stream().map_err(|error| failed("cuStreamCreate", error));
        let order = new_stream()?;
        let more = (1..plan.in_flight()).map(|_| new_stream()).collect::<Result<Vec<_>, _>>()?;
        let (streams, ranges) = ((&order, more.as_slice()), buffers.clone());
        let mut backend = OnStreams::new(self, driver, pipeline, ranges, streams, watch);
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
