//! Runs pipelines on a device.

pub(crate) mod capture;
pub(crate) mod graph;
pub(crate) mod memory;
pub(crate) mod run;
pub(crate) mod stage;

use core::panic::Location;

use crate::cuda::arguments::uses::check_order;
use crate::cuda::driver::history::Watch;
use crate::cuda::driver::symbols::Driver;
use crate::cuda::error::CudaError;
use crate::cuda::guard::other_context;
use crate::cuda::pipeline::memory::DeviceMemory;
use crate::cuda::pipeline::run::{OnStreams, bind_streams};
use crate::cuda::pipeline::stage::{Body, CudaPipeline, CudaStage};
use crate::guard::Guard;
use crate::pipeline::error::{MemoryError, RunError, StageError};
use crate::pipeline::plan::{Budget, PipelinePlan};
use crate::pipeline::progress::{Monitor, PipelineRun};
use crate::pipeline::run::run;

impl Guard {
    /// So many percent of the memory that is free on the guard's device now, one chunk at a time.
    ///
    /// # Errors
    ///
    /// As [`Self::free_memory`].
    pub fn pipeline_budget(&self, percent: u64) -> Result<Budget, CudaError> {
        Ok(Budget::share_of(self.free_memory()?.0, percent))
    }

    /// Submits all chunks of `plan`, a plan of `pipeline`, to the streams of `memory`, and returns before
    /// they have run.
    ///
    /// Scratch is allocated on the first stream, once for each chunk in flight, not initialised, and freed
    /// there after the last chunk, or [kept](DeviceMemory::scratch). Where that allocation or a stage runs out of memory, the items that are
    /// left run in chunks of half the size; after a stage only if no buffer is changed in place or
    /// accumulated, since the chunk runs again. All arguments are checked before the first launch.
    ///
    /// A stream that is being captured is refused, but within [`capture_launches`](crate::cuda::capture_launches),
    /// with memory that the graph may use: see [`DeviceMemory::read_raw`] and [`DeviceMemory::scratch_raw`].
    ///
    /// # Errors
    ///
    /// [`RunError`] with what was submitted before it. Of the chunk that failed, outputs and in-place
    /// buffers are unspecified. After a panic in a stage the pipeline does not run again.
    #[track_caller]
    pub fn run_pipeline(
        &self,
        pipeline: &mut CudaPipeline<'_>,
        plan: &PipelinePlan,
        memory: DeviceMemory<'_>,
    ) -> Result<PipelineRun, RunError> {
        self.run_on_device(pipeline, plan, memory, None, self.watch(Location::caller()))
    }

    /// As [`Self::run_pipeline`], watched by `monitor`. The chunks in flight are waited for before each
    /// report, so that the device is idle for a moment between them.
    ///
    /// # Errors
    ///
    /// As [`Self::run_pipeline`]; [`RunError::Late`] if the device reports a failure.
    #[track_caller]
    pub fn run_pipeline_monitored(
        &self,
        pipeline: &mut CudaPipeline<'_>,
        plan: &PipelinePlan,
        memory: DeviceMemory<'_>,
        monitor: &mut dyn Monitor,
    ) -> Result<PipelineRun, RunError> {
        self.run_on_device(pipeline, plan, memory, Some(monitor), self.watch(Location::caller()))
    }

    fn run_on_device(
        &self,
        pipeline: &mut CudaPipeline<'_>,
        plan: &PipelinePlan,
        memory: DeviceMemory<'_>,
        monitor: Option<&mut dyn Monitor>,
        watch: Watch,
    ) -> Result<PipelineRun, RunError> {
        pipeline.check_plan(plan)?;
        let CudaPipeline { definition, bodies, poisoned } = pipeline;
        let (in_flight, streams) = (plan.in_flight(), memory.more.len() + 1);
        if usize::try_from(in_flight).map_or(true, |in_flight| in_flight > streams) {
            return Err(MemoryError::TooFewStreams { in_flight, streams }.into());
        }
        let buffers = memory.ranges(definition)?;
        let driver = self.bind_run(bodies, &memory)?;
        let DeviceMemory { args, stream, more, scratch, raw_scratch, .. } = memory;
        let _in_use = args.uses().begin();
        let mut backend =
            OnStreams::new(self, driver, (definition, bodies), buffers, (stream, more), watch);
        if let Some(scratch) = scratch {
            backend = backend.with_scratch(scratch);
        }
        if let Some(scratch) = raw_scratch {
            backend = backend.with_raw_scratch(scratch);
        }
        let ran = run(definition, plan, &mut backend, monitor);
        let (ran, launches) = backend.end(args.uses(), ran);
        match &ran {
            Ok(_) => self.counters.ran(launches),
            Err(_) => self.counters.stopped(launches),
        }
        if let Err(RunError::Stage { stage, source: StageError::Panicked { .. }, .. }) = &ran {
            *poisoned = Some(stage.clone());
        }
        ran
    }

    /// Makes the context current in which guard, streams, memory and kernels all are.
    pub(super) fn bind_run(
        &self,
        bodies: &[CudaStage<'_>],
        memory: &DeviceMemory<'_>,
    ) -> Result<&'static Driver, RunError> {
        let device = |source: StageError| RunError::Device { source };
        let context = self.device_context().map_err(|error| device(error.into()))?;
        let driver = Driver::get().map_err(|error| device(CudaError::from(error).into()))?;
        let streams = || core::iter::once(memory.stream).chain(memory.more);
        if streams().any(|stream| stream.context() != context) {
            return Err(MemoryError::OtherContext { what: "a stream" }.into());
        }
        if memory.args.uses().has_foreign_memory() {
            return Err(MemoryError::OtherContext { what: "memory" }.into());
        }
        for CudaStage(body) in bodies {
            if let Body::Kernel { kernel, .. } = body
                && kernel.inner().owned.as_ref() != Some(context)
            {
                return Err(device(other_context("the guard", kernel).into()));
            }
            if let Body::Product(product) = body
                && product.context() != context
            {
                return Err(MemoryError::OtherContext { what: "a product" }.into());
            }
        }
        bind_streams(driver, memory.stream, memory.more)?;
        check_order(memory.args.uses()).map_err(|error| device(error.into()))?;
        Ok(driver)
    }
}
