//! Runs pipelines on a device: chunks in flight take turns on streams.

use core::panic::Location;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};

use super::driver::from_cudarc;
use super::error::{CudaError, DriverError, LaunchError};
use super::guard::{check_order, other_context};
use super::history::Watch;
use super::launch::{Submission, prepare};
use super::pipeline_stage::{
    Body, Call, CudaPipeline, CudaStage, DeviceMemory, DeviceRange, DeviceViews,
};
use super::symbols::{Driver, Handle};
use crate::guard::Guard;
use crate::pipeline::buffer::Extent;
use crate::pipeline::definition::Definition;
use crate::pipeline::error::{MemoryError, RunError, StageError};
use crate::pipeline::plan::{Budget, PipelinePlan};
use crate::pipeline::progress::{Monitor, PipelineRun};
use crate::pipeline::run::{Backend, ChunkFailure, run};
use crate::plan::arguments::{ArgsError, KernelArgs, MAX_ARGS};
use crate::plan::backoff::AllocationError;
use crate::plan::chunks::Chunk;
use crate::plan::run::panic_message;
use crate::plan::slot::Slot;

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
    /// there after the last chunk. Where that allocation or a stage runs out of memory, the items that are
    /// left run in chunks of half the size; after a stage only if no buffer is changed in place or
    /// accumulated, since the chunk runs again. All arguments are checked before the first launch.
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
        let CudaPipeline { definition, bodies, poisoned } = pipeline;
        if let Some(stage) = poisoned {
            return Err(RunError::Poisoned { stage: stage.clone() });
        }
        if plan.pipeline != definition.id {
            return Err(RunError::OtherPlan);
        }
        let buffers = callers_memory(definition, plan, &memory)?;
        let driver = self.bind_run(bodies, &memory)?;
        let DeviceMemory { args, stream, more, .. } = &memory;
        args.uses().begin();
        let mut backend = OnStreams {
            guard: self,
            driver,
            definition,
            bodies,
            buffers,
            stream,
            more,
            watch,
            forked: 0,
            scratch: Vec::new(),
            lanes: Vec::new(),
            launches: 0,
        };
        let ran = run(definition, plan, &mut backend, monitor);
        match &ran {
            Ok(_) => self.counters.ran(backend.launches),
            Err(_) => self.counters.stopped(backend.launches),
        }
        if let Err(RunError::Stage { stage, source: StageError::Panicked { .. }, .. }) = &ran {
            *poisoned = Some(stage.clone());
        }
        ran
    }

    /// Makes the context current in which guard, streams, memory and kernels all are.
    fn bind_run(
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
        }
        bind_streams(driver, memory.stream, memory.more)?;
        check_order(&memory.args).map_err(|error| device(error.into()))?;
        Ok(driver)
    }
}

/// The caller's memory of each buffer, `None` for scratch.
fn callers_memory(
    definition: &Definition,
    plan: &PipelinePlan,
    memory: &DeviceMemory<'_>,
) -> Result<Vec<Option<DeviceRange>>, MemoryError> {
    let DeviceMemory { args, more, given, .. } = memory;
    if given.len() > MAX_ARGS {
        // Nothing would order the uses of the memory beyond.
        return Err(MemoryError::TooMany { given: given.len(), most: MAX_ARGS });
    }
    let (in_flight, streams) = (plan.in_flight(), more.len() + 1);
    if usize::try_from(in_flight).map_or(true, |in_flight| in_flight > streams) {
        return Err(MemoryError::TooFewStreams { in_flight, streams });
    }
    let places = definition.check_memory(given)?;
    let range = |place: Option<usize>| {
        let (given, slot) = (given.get(place?)?, args.values().slots().get(place?)?);
        Some(DeviceRange { address: slot.bits(&Chunk::only(0)), bytes: given.bytes })
    };
    Ok(places.into_iter().map(range).collect())
}

/// A run on the streams of a device.
struct OnStreams<'r, 'a> {
    guard: &'r Guard,
    driver: &'static Driver,
    definition: &'r Definition,
    bodies: &'r mut [CudaStage<'a>],
    /// The caller's memory of each buffer.
    buffers: Vec<Option<DeviceRange>>,
    stream: &'r Arc<CudaStream>,
    more: &'r [Arc<CudaStream>],
    watch: Watch,
    /// How many of the further streams have work that the first does not wait for yet.
    forked: usize,
    /// Of each chunk in flight, freed on the first stream.
    scratch: Vec<CudaSlice<u8>>,
    lanes: Vec<Lane<'a>>,
    /// Launches that were submitted.
    launches: u64,
}

/// One of the chunks in flight.
struct Lane<'a> {
    /// The address of its scratch.
    scratch: u64,
    /// The arguments of each stage that launches a kernel.
    arguments: Vec<Option<KernelArgs<'a>>>,
}

impl Backend for OnStreams<'_, '_> {
    fn allocate(&mut self, plan: &PipelinePlan) -> Result<(), StageError> {
        self.join();
        self.scratch.clear();
        self.lanes.clear();
        for _ in 0..plan.in_flight() {
            let mut address = 0;
            if plan.scratch_bytes() > 0 {
                let allocated = self.driver.allocate(self.stream, plan.scratch_bytes());
                let mut memory = allocated.map_err(|error| match error {
                    AllocationError::OutOfMemory(error) => StageError::out_of_memory(error),
                    AllocationError::Failed(error) => error.into(),
                })?;
                // All uses are on streams that the one that frees it waits for.
                (address, _) = memory.device_ptr_mut(self.stream);
                self.scratch.push(memory);
            }
            self.lanes.push(Lane { scratch: address, arguments: Vec::new() });
        }
        // After the work that the first stream waits for, and after the allocations.
        for stream in self.more.iter().take(self.lanes.len().saturating_sub(1)) {
            let failed = |error| from_cudarc(Some(stream.context()), "cuStreamWaitEvent", error);
            stream.join(self.stream).map_err(failed)?;
            self.forked += 1;
        }
        Ok(())
    }

    fn prepare(&mut self, plan: &PipelinePlan) -> Result<(), (usize, StageError)> {
        for place in 0..self.lanes.len() {
            for index in 0..self.bodies.len() {
                let arguments = self.arguments(place, index, plan);
                let arguments = arguments.map_err(|error| (index, error.into()))?;
                if let Some(lane) = self.lanes.get_mut(place) {
                    lane.arguments.push(arguments);
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, plan: &PipelinePlan, chunks: &[Chunk]) -> Result<(), ChunkFailure> {
        for (position, chunk) in chunks.iter().enumerate() {
            for stage in 0..self.bodies.len() {
                let ran = self.run_stage(position, stage, plan, chunk);
                ran.map_err(|source| ChunkFailure { position, stage, source })?;
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), StageError> {
        for place in 0..self.lanes.len() {
            self.guard.synchronize(self.stream_of(place))?;
        }
        Ok(())
    }
}

impl<'r, 'a> OnStreams<'r, 'a> {
    fn stream_of(&self, lane: usize) -> &'r Arc<CudaStream> {
        let further = lane.checked_sub(1).and_then(|index| self.more.get(index));
        further.unwrap_or(self.stream)
    }

    /// The checked arguments of the kernel that the stage at `index` launches, if it does.
    fn arguments(
        &self,
        lane: usize,
        index: usize,
        plan: &PipelinePlan,
    ) -> Result<Option<KernelArgs<'a>>, LaunchError> {
        let (Some(CudaStage(Body::Kernel { kernel, arguments, buffers })), Some(launches)) =
            (self.bodies.get(index), plan.launches_of(index))
        else {
            return Ok(None);
        };
        let arguments = arguments.replaced(|place, _| {
            let (_, id) = buffers.iter().find(|(other, _)| *other == place)?;
            self.slot(lane, id.index, plan)
        });
        let items = self.definition.items;
        if launches.shares_blocks() {
            arguments.check_values(items)?;
        }
        let stream = handle(self.stream_of(lane));
        // SAFETY: `self` borrows the stream, of the context that `bind_run` made current.
        unsafe { prepare(kernel, stream, launches.largest_launch(), Some(items), &arguments) }?;
        Ok(Some(arguments))
    }

    /// The argument that is the buffer at `index`.
    fn slot(&self, lane: usize, index: usize, plan: &PipelinePlan) -> Option<Slot<'a>> {
        let extent = self.definition.buffers.get(index)?.extent;
        match (self.buffers.get(index)?, extent) {
            (Some(range), Extent::PerItem(bytes)) => Some(Slot::Items {
                base: range.address,
                stride_bytes: bytes,
                span_bytes: bytes,
                reach_bytes: range.bytes,
            }),
            (Some(range), Extent::Fixed(_)) => Some(Slot::Address(range.address)),
            (None, _) => {
                let (offset, _) = self.definition.scratch_place(index, plan, plan.chunk_items())?;
                Some(Slot::Address(self.lanes.get(lane)?.scratch.saturating_add(offset)))
            }
        }
    }

    fn run_stage(
        &mut self,
        lane: usize,
        index: usize,
        plan: &PipelinePlan,
        chunk: &Chunk,
    ) -> Result<(), StageError> {
        let stream = self.stream_of(lane);
        let views = self.views(lane, index, plan, chunk);
        let Some(CudaStage(body)) = self.bodies.get_mut(index) else { return Ok(()) };
        let kernel = match body {
            Body::Kernel { kernel, .. } => kernel,
            Body::Call(call) => {
                call_stage(call, stream, chunk, &views)?;
                return self.check_call();
            }
        };
        let lane = self.lanes.get(lane).and_then(|lane| lane.arguments.get(index)?.as_ref());
        let (Some(arguments), Some(planned)) = (lane, plan.launch(index, *chunk)) else {
            return Err(ArgsError::NoBatch { index: 0 }.into());
        };
        // SAFETY: `self` borrows the stream, which `bind_run` found to be of the kernel's context. That is
        // current: `check_call` makes it so again. `Module::kernel`'s caller vouches for launches with
        // arguments of the declared kinds, which `prepare` checked: the caller's memory is borrowed and long
        // enough for all items, and its `Uses` order later uses after the first stream, which waits for the
        // others before scratch is freed and before the run returns; scratch has the bytes of the buffer
        // for the chunk's items, and nothing else uses them meanwhile: stages of a chunk run in order on
        // one stream, and each stream has scratch of its own. What several chunks may write is per item,
        // else the plan has one chunk in flight.
        let submission = unsafe { Submission::new(kernel, handle(stream), arguments, self.watch) };
        // SAFETY: the plan is of the pipeline, whose stage has this kernel's limits; `prepare` was called
        // with its largest launch. It overlaps nothing.
        unsafe { submission.launch(&planned.chunk, &planned.launch, false, plan.len()) }?;
        self.launches = self.launches.saturating_add(1);
        Ok(())
    }

    /// What a stage that is called sees.
    fn views(
        &self,
        lane: usize,
        index: usize,
        plan: &PipelinePlan,
        chunk: &Chunk,
    ) -> DeviceViews<'r> {
        let stage = self.definition.stages.get(index);
        let uses = stage.iter().flat_map(|stage| &stage.uses);
        let view = |&(buffer, access): &(usize, _)| {
            let extent = self.definition.buffers.get(buffer)?.extent;
            let bytes = u64::try_from(extent.bytes(chunk.items)).unwrap_or(u64::MAX);
            let address = self.slot(lane, buffer, plan)?.bits(chunk);
            Some((buffer, access, DeviceRange { address, bytes }))
        };
        let views = uses.filter_map(view).collect();
        let stage = stage.map_or("", |stage| &stage.name);
        DeviceViews { definition: self.definition, stage, views }
    }

    /// Makes the context current again, and checks that the stage that was called has begun no capture.
    fn check_call(&self) -> Result<(), StageError> {
        bind_streams(self.driver, self.stream, self.more)?;
        Ok(())
    }

    /// Makes the first stream wait for the others.
    fn join(&mut self) {
        for stream in self.more.iter().take(self.forked) {
            let joined = self.stream.join(stream);
            let context = stream.context();
            if joined.is_err() {
                context.record_err(stream.synchronize());
            }
            context.record_err(joined);
        }
        self.forked = 0;
    }
}

impl Drop for OnStreams<'_, '_> {
    fn drop(&mut self) {
        // Before scratch is freed on the first stream.
        self.join();
    }
}

/// Calls a stage.
fn call_stage(
    call: &mut Call<'_>,
    stream: &Arc<CudaStream>,
    chunk: &Chunk,
    views: &DeviceViews<'_>,
) -> Result<(), StageError> {
    // The caller discards what a stage that panicked has written, as after any failure.
    let called = catch_unwind(AssertUnwindSafe(|| call(stream, chunk, views)));
    called.unwrap_or_else(|panic| {
        Err(StageError::Panicked { message: panic_message(panic.as_ref()) })
    })
}

/// Makes the context of the streams current, if none of them is being captured.
fn bind_streams(
    driver: &Driver,
    stream: &Arc<CudaStream>,
    more: &[Arc<CudaStream>],
) -> Result<(), RunError> {
    let refused = |error: DriverError| RunError::Device { source: error.into() };
    driver.bind(stream.context().cu_ctx().cast()).map_err(refused)?;
    for stream in core::iter::once(stream).chain(more) {
        // SAFETY: the stream is borrowed, and its context current.
        if unsafe { driver.is_capturing(handle(stream)) }.map_err(refused)? {
            return Err(MemoryError::Captured.into());
        }
    }
    Ok(())
}

fn handle(stream: &CudaStream) -> Handle {
    stream.cu_stream().cast()
}
