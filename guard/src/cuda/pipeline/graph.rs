//! Pipelines captured as one CUDA graph, which is replayed over the same memory.

use core::fmt;
use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, result};

use crate::cuda::driver::history::Watch;
use crate::cuda::driver::library::from_cudarc;
use crate::cuda::launch::capture::capture_launches;
use crate::cuda::pipeline::memory::DeviceMemory;
use crate::cuda::pipeline::run::{OnStreams, join};
use crate::cuda::pipeline::stage::{Body, CudaPipeline, CudaStage, DeviceRange};
use crate::guard::Guard;
use crate::pipeline::error::{MemoryError, RunError};
use crate::pipeline::plan::PipelinePlan;
use crate::pipeline::progress::PipelineRun;
use crate::pipeline::run::run;

/// A pipeline that was captured as one CUDA graph: [`Guard::capture_pipeline`].
///
/// It owns the pipeline, so kernels and what stages captured are alive, and its scratch. Dropping it waits
/// for its replays.
pub struct PipelineGraph<'a> {
    /// `None` for a plan without chunks.
    graph: Option<CudaGraph>,
    /// Comes after all replays, and before the next; scratch is freed on it.
    order: Arc<CudaStream>,
    /// Held for the graph.
    _scratch: Vec<CudaSlice<u8>>,
    /// The caller's memory that the graph uses.
    buffers: Vec<Option<DeviceRange>>,
    pipeline: CudaPipeline<'a>,
    captured: PipelineRun,
    /// Launches of a replay.
    launches: u64,
}

impl Guard {
    /// Captures all chunks of `plan`, a plan of `pipeline`, as one graph over `memory`: the last chunk
    /// too if it has fewer items, and copies of buffers in host memory. Nothing runs yet, so `memory` is
    /// read and written only by [`Self::replay_pipeline`].
    ///
    /// Chunks in flight become parallel branches, whatever streams `memory` has. Scratch is allocated as
    /// by [`Self::run_pipeline`], and belongs to the graph; where it does not fit, with smaller chunks. A
    /// stage that runs out of memory is not tried again.
    ///
    /// # Errors
    ///
    /// [`RunError`] as of [`Self::run_pipeline`], after which nothing of the pipeline has run, and
    /// [`RunError::NotCapturable`] for a stage of
    /// [`call`](crate::pipeline::PipelineBuilder::call). The pipeline is dropped.
    #[track_caller]
    pub fn capture_pipeline<'a>(
        &self,
        pipeline: CudaPipeline<'a>,
        plan: &PipelinePlan,
        memory: DeviceMemory<'_>,
    ) -> Result<PipelineGraph<'a>, RunError> {
        self.capture(pipeline, plan, &memory, self.watch(Location::caller()))
    }

    /// Submits a captured pipeline to the first stream of `memory`, which must be what it was captured
    /// with, and returns before it has run. Replays run one after another.
    ///
    /// Earlier and later work on the memory is ordered as by [`Self::run_pipeline`].
    ///
    /// # Errors
    ///
    /// [`RunError::Memory`] for other memory, [`RunError::Device`] if the device refuses the graph;
    /// nothing ran then.
    pub fn replay_pipeline(
        &self,
        graph: &mut PipelineGraph<'_>,
        memory: DeviceMemory<'_>,
    ) -> Result<(), RunError> {
        let definition = &graph.pipeline.definition;
        let buffers = memory.ranges(definition)?;
        for ((captured, given), spec) in graph.buffers.iter().zip(&buffers).zip(&definition.buffers)
        {
            if captured != given {
                return Err(MemoryError::OtherMemory { buffer: spec.name.clone() }.into());
            }
        }
        self.bind_run(&graph.pipeline.bodies, &memory)?;
        let Some(exec) = &graph.graph else { return Ok(()) };
        let (stream, order) = (memory.stream, &graph.order);
        let failed = |call, error| RunError::Device {
            source: from_cudarc(Some(stream.context()), call, error).into(),
        };
        stream.join(order).map_err(|error| failed("cuStreamWaitEvent", error))?;
        let _in_use = memory.args.uses().begin();
        // SAFETY: the graph is alive, and `bind_run` found the stream alive in its context, which is
        // current. What it uses is alive until it has run: the caller's memory is that of the capture,
        // given again, whose `Uses` order its other uses before and after this stream's work; scratch,
        // kernels and calls are the graph's, which waits for `order` before it drops them. Of a call's
        // work its stage's caller vouches for that.
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

    fn capture<'a>(
        &self,
        mut pipeline: CudaPipeline<'a>,
        plan: &PipelinePlan,
        memory: &DeviceMemory<'_>,
        watch: Watch,
    ) -> Result<PipelineGraph<'a>, RunError> {
        pipeline.check_plan(plan)?;
        for (CudaStage(body), spec) in pipeline.bodies.iter().zip(&pipeline.definition.stages) {
            if matches!(body, Body::Call { in_graphs: false, .. }) {
                return Err(RunError::NotCapturable { stage: spec.name.clone() });
            }
        }
        let buffers = memory.ranges(&pipeline.definition)?;
        let driver = self.bind_run(&pipeline.bodies, memory)?;
        driver.check_graphs().map_err(|error| RunError::Device { source: error.into() })?;
        // Streams that nobody else has: other threads' work on the caller's would become part of the
        // graph.
        let context = memory.stream.context();
        let device = |call, error| {
            let source = from_cudarc(Some(context), call, error);
            RunError::Device { source: source.into() }
        };
        let new_stream = |_| context.new_stream();
        let streams: Result<Vec<_>, _> = (0..plan.in_flight().max(1)).map(new_stream).collect();
        let streams = streams.map_err(|error| device("cuStreamCreate", error))?;
        let Some((order, more)) = streams.split_first() else {
            return Err(MemoryError::TooFewStreams { in_flight: 1, streams: 0 }.into());
        };
        let CudaPipeline { definition, bodies, .. } = &mut pipeline;
        let parts = (&*definition, bodies.as_mut_slice());
        let ranges = buffers.clone();
        let mut backend =
            OnStreams::new(self, driver, parts, ranges, (order, more), watch).captured();
        // SAFETY: the graph keeps kernels and scratch, and the caller of each call that launches has
        // promised to keep the rest. The caller's memory is given again for each replay.
        let ran = unsafe { capture_launches(|| run(definition, plan, &mut backend, None)) };
        let ended = backend.end_capture();
        let (launches, scratch) = (backend.launches, backend.take_scratch());
        drop(backend);
        let captured = ran?;
        let graph = ended.map_err(|error| device("cuStreamEndCapture", error))?;
        let order = Arc::clone(order);
        let graph = PipelineGraph {
            graph,
            order,
            _scratch: scratch,
            buffers,
            pipeline,
            captured,
            launches,
        };
        Ok(graph)
    }
}

impl PipelineGraph<'_> {
    /// What a replay does: its chunks, items and scratch.
    #[must_use]
    pub const fn run(&self) -> &PipelineRun {
        &self.captured
    }
}

impl Drop for PipelineGraph<'_> {
    fn drop(&mut self) {
        // Nothing but the driver knows what the work of a call uses.
        self.order.context().record_err(self.order.synchronize());
    }
}

impl fmt::Debug for PipelineGraph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PipelineGraph");
        debug.field("pipeline", &self.pipeline).field("run", &self.captured).finish_non_exhaustive()
    }
}
