//! Runs pipelines on a device: as a plan's chunks, or as one graph of them.

mod capture;
pub(crate) mod graph;
pub(crate) mod memory;
mod replay;
pub(crate) mod stage;
pub(crate) mod streams;
pub(crate) mod views;

use core::panic::Location;

use gridguard::cuda::CudaError;
use gridguard::cuda::schedule::Scheduler;
use gridguard::{Guard, count};

use crate::cuda::memory::DeviceMemory;
use crate::cuda::streams::{OnStreams, check_captures};
use crate::error::Error;
use crate::pipeline::{ON_DEVICE, Pipeline, StageWork};
use crate::plan::{Budget, PipelinePlan};
use crate::progress::PipelineRun;
use crate::run::{Run, run};

impl Budget {
    /// A budget of `percent` percent of the memory that is free on the guard's device now, one chunk at a
    /// time.
    ///
    /// # Errors
    ///
    /// As [`Guard::free_memory`].
    pub fn of_free_memory(guard: &Guard, percent: u64) -> Result<Self, CudaError> {
        Ok(Self::share_of(guard.free_memory()?.0, percent))
    }
}

impl Run for DeviceMemory<'_> {
    fn run(
        self,
        guard: &Guard,
        pipeline: &mut Pipeline<'_>,
        plan: &PipelinePlan,
        caller: &'static Location<'static>,
    ) -> Result<PipelineRun, Error> {
        pipeline.check_run(plan, ON_DEVICE)?;
        match plan.graph {
            Some(id) => pipeline.run_graph(guard, plan, id, &self, caller),
            None => pipeline.run_chunks(guard, plan, self, caller),
        }
    }
}

impl Pipeline<'_> {
    fn run_chunks(
        &mut self,
        guard: &Guard,
        plan: &PipelinePlan,
        memory: DeviceMemory<'_>,
        caller: &'static Location<'static>,
    ) -> Result<PipelineRun, Error> {
        let (in_flight, streams) = (plan.in_flight(), memory.more.len() + 1);
        if usize::try_from(in_flight).map_or(true, |in_flight| in_flight > streams) {
            return Err(Error::memory(format!(
                "the plan has {in_flight} chunks in flight, but only {}",
                count(streams, "stream")
            )));
        }
        let buffers = memory.ranges(&self.definition)?;
        let scheduler = self.scheduler(guard, &memory, caller)?;
        let DeviceMemory { uses, stream, more, scratch, raw_scratch, monitor, .. } = memory;
        let _in_use = uses.begin();
        let mut backend = OnStreams::new(scheduler, self, buffers, (stream, more));
        backend.keep_scratch(scratch, raw_scratch);
        let ran = run(backend.definition, plan, &mut backend, monitor);
        backend.end(&uses, ran)
    }

    /// Checks that guard, streams, memory and stages have one context, and makes it current.
    pub(crate) fn scheduler<'g>(
        &self,
        guard: &'g Guard,
        memory: &DeviceMemory<'_>,
        caller: &'static Location<'static>,
    ) -> Result<Scheduler<'g>, Error> {
        let scheduler = Scheduler::new(guard, caller).map_err(Error::device)?;
        let context = scheduler.context();
        let other = |what| Err(Error::other_context(what));
        let mut streams = core::iter::once(memory.stream).chain(memory.more);
        if streams.any(|stream| stream.context() != context) {
            return other("a stream");
        }
        if memory.uses.is_foreign() {
            return other("memory");
        }
        for body in &self.work {
            match body {
                StageWork::Kernel { kernel, .. } => {
                    scheduler.check_kernel(kernel).map_err(Error::device)?;
                }
                StageWork::Product(product) if product.context() != context => {
                    return other("a product");
                }
                _ => {}
            }
        }
        check_captures(&scheduler, memory.stream, memory.more)?;
        memory.uses.check().map_err(Error::device)?;
        Ok(scheduler)
    }
}
