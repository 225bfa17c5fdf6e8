//! Runs pipelines on a device: as a plan's chunks, or as one graph of them.

pub(crate) mod capture;
pub(crate) mod device_stage;
pub(crate) mod graph;
pub(crate) mod memory;
mod replay;
pub(crate) mod run;
mod stage;

use core::panic::Location;

use crate::cuda::arguments::uses::check_order;
use crate::cuda::driver::history::Watch;
use crate::cuda::driver::symbols::Driver;
use crate::cuda::error::{CudaError, LaunchError};
use crate::cuda::pipeline::memory::DeviceMemory;
use crate::cuda::pipeline::run::{OnStreams, bind_streams};
use crate::guard::Guard;
use crate::pipeline::bodies::{Body, ON_DEVICE, Pipeline};
use crate::pipeline::error::{MemoryError, RunError};
use crate::pipeline::plan::{Budget, PipelinePlan};
use crate::pipeline::progress::PipelineRun;
use crate::pipeline::run::{Run, run};

impl Guard {
    /// A budget of `percent` percent of the memory that is free on the guard's device now, one chunk at a
    /// time.
    ///
    /// # Errors
    ///
    /// As [`Self::free_memory`].
    pub fn pipeline_budget(&self, percent: u64) -> Result<Budget, CudaError> {
        Ok(Budget::share_of(self.free_memory()?.0, percent))
    }

    fn run_chunks(
        &self,
        pipeline: &mut Pipeline<'_>,
        plan: &PipelinePlan,
        memory: DeviceMemory<'_>,
        watch: Watch,
    ) -> Result<PipelineRun, RunError> {
        let (in_flight, streams) = (plan.in_flight(), memory.more.len() + 1);
        if usize::try_from(in_flight).map_or(true, |in_flight| in_flight > streams) {
            return Err(MemoryError::TooFewStreams { in_flight, streams }.into());
        }
        let buffers = memory.ranges(&pipeline.definition)?;
        let driver = self.bind_run(pipeline, &memory)?;
        let DeviceMemory { args, stream, more, scratch, raw_scratch, monitor, .. } = memory;
        let _in_use = args.uses().begin();
        let mut backend = OnStreams::new(self, driver, pipeline, buffers, (stream, more), watch);
        backend.keep_scratch(scratch, raw_scratch);
        let ran = run(backend.definition, plan, &mut backend, monitor);
        let (ran, launches) = backend.end(args.uses(), ran);
        match &ran {
            Ok(_) => self.counters.ran(launches),
            Err(_) => self.counters.stopped(launches),
        }
        ran
    }

    /// Checks that guard, streams, memory and stages have one context, and makes it current.
    pub(super) fn bind_run(
        &self,
        pipeline: &Pipeline<'_>,
        memory: &DeviceMemory<'_>,
    ) -> Result<&'static Driver, RunError> {
        let context = self.device_context().map_err(RunError::device)?;
        let driver = Driver::get().map_err(|error| RunError::device(CudaError::from(error)))?;
        let other = |what| Err(MemoryError::OtherContext(what).into());
        let mut streams = core::iter::once(memory.stream).chain(memory.more);
        if streams.any(|stream| stream.context() != context) {
            return other("a stream");
        }
        if memory.args.uses().foreign {
            return other("memory");
        }
        for body in &pipeline.bodies {
            match body {
                Body::Kernel { kernel, .. } if kernel.inner.owned.as_ref() != Some(context) => {
                    let (what, name) = ("the guard", kernel.name().to_owned());
                    return Err(RunError::device(match &kernel.inner.owned {
                        Some(_) => LaunchError::OtherContext { what, kernel: name },
                        None => LaunchError::Undeclared { kernel: name },
                    }));
                }
                Body::Product(product) if product.context() != context => {
                    return other("a product");
                }
                _ => {}
            }
        }
        bind_streams(driver, memory.stream, memory.more)?;
        check_order(memory.args.uses()).map_err(RunError::device)?;
        Ok(driver)
    }
}

impl Run for DeviceMemory<'_> {
    fn run(
        self,
        guard: &Guard,
        pipeline: &mut Pipeline<'_>,
        plan: &PipelinePlan,
        caller: &'static Location<'static>,
    ) -> Result<PipelineRun, RunError> {
        pipeline.check_run(plan, ON_DEVICE)?;
        let watch = guard.watch(caller);
        match plan.graph() {
            Some(id) => guard.run_graph(pipeline, plan, id, &self, watch),
            None => guard.run_chunks(pipeline, plan, self, watch),
        }
    }
}
