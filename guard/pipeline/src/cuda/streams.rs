//! Submits the chunks of a pipeline to streams of a device: chunks in flight alternate between them.

use std::sync::Arc;

use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, DevicePtrMut, sys};
use gridguard::cuda::LaunchError;
use gridguard::cuda::schedule::{AllocationError, Scheduler, driver_error};
use gridguard::{ArgsError, Chunk, RawArgs};

use crate::buffer::saturated;
use crate::cuda::memory::PipelineScratch;
use crate::cuda::views::{Argument, DeviceRange, DeviceViews};
use crate::definition::Definition;
use crate::error::{Error, ErrorKind, StageError, StageResult};
use crate::pipeline::{Pipeline, StageWork};
use crate::plan::PipelinePlan;
use crate::run::{Backend, ChunkFailure, catch_panic};

/// A run on the streams of a device.
pub(crate) struct OnStreams<'r, 'a> {
    pub(crate) scheduler: Scheduler<'r>,
    pub(crate) definition: &'r Definition,
    stages: &'r mut [StageWork<'a>],
    /// The caller's memory of each buffer, on the device or the host.
    buffers: Vec<Option<DeviceRange>>,
    pub(crate) stream: &'r Arc<CudaStream>,
    pub(crate) more: &'r [Arc<CudaStream>],
    /// The number of further streams with work that the first stream does not wait for yet.
    pub(crate) forked: usize,
    /// The scratch of each chunk in flight, freed on the first stream. Before the first allocation, scratch
    /// of earlier runs.
    pub(crate) scratch: Vec<CudaSlice<u8>>,
    /// Keeps the scratch for later runs.
    keeper: Option<&'r mut PipelineScratch>,
    /// Scratch of another CUDA binding.
    raw: Option<DeviceRange>,
    lanes: Vec<Lane<'a>>,
    /// The number of submitted launches.
    pub(crate) launches: u64,
    pub(crate) capture: Capture,
    /// Whether the caller's code may have run since the last `resume`.
    pub(crate) is_left: bool,
    /// Whether a stream is in a capture that another stream must end. All work is done then.
    pub(crate) is_stuck: bool,
}

/// Whether the work becomes a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capture {
    No,
    /// The capture begins with the first chunk.
    Wanted,
    Begun,
}

/// A stage of a chunk in flight.
#[derive(Clone, Copy)]
struct Step<'p> {
    plan: &'p PipelinePlan,
    chunk: &'p Chunk,
    lane: usize,
    /// The index of the stage.
    stage: usize,
}

/// Where a buffer is.
#[derive(Clone, Copy, Default)]
struct Place {
    base: u64,
    /// Bytes of an item of the whole batch; 0 for memory that is the same for every chunk, and for scratch.
    bytes_per_item: u64,
    /// Bytes from `base` on.
    bytes: u64,
}

impl Place {
    /// The address of the chunk's items. `prepare` checked that all items are in the address space.
    const fn address(&self, chunk: &Chunk) -> u64 {
        self.base.wrapping_add(chunk.start.wrapping_mul(self.bytes_per_item))
    }

    /// Adds it to a kernel's arguments, without the first `offset` bytes of it or of each item.
    fn add_to(self, arguments: &mut RawArgs<'_>, offset: u64) {
        let Self { base, bytes_per_item, bytes } = self;
        let base = base.saturating_add(offset);
        if bytes_per_item == 0 {
            arguments.address(base);
        } else {
            let (span, reach) =
                (bytes_per_item.saturating_sub(offset), bytes.saturating_sub(offset));
            arguments.items_within(base, bytes_per_item, span, reach);
        }
    }
}

/// One of the chunks in flight.
struct Lane<'a> {
    /// The address of the scratch.
    scratch: u64,
    /// The arguments of each stage that launches a kernel.
    arguments: Vec<Option<RawArgs<'a>>>,
}

impl Backend for OnStreams<'_, '_> {
    fn allocate(&mut self, plan: &PipelinePlan) -> StageResult {
        self.resume()?;
        self.join();
        let bytes = plan.scratch_bytes;
        let mut kept = core::mem::take(&mut self.scratch);
        let is_first = self.lanes.is_empty();
        kept.retain(|memory| is_first && saturated(memory.num_bytes()) >= bytes);
        self.lanes.clear();
        let raw = self.raw.filter(|raw| raw.bytes >= plan.bytes());
        for lane in 0..plan.in_flight() {
            // In range, because `raw` has the bytes of all lanes.
            let mut address = raw.map_or(0, |raw| raw.address.saturating_add(lane * bytes));
            if bytes > 0 && raw.is_none() {
                let mut memory = match kept.pop() {
                    Some(memory) => memory,
                    None => self.scheduler.allocate(self.stream, bytes).map_err(
                        |error| match error {
                            AllocationError::OutOfMemory(error) => Error::out_of_memory(error),
                            AllocationError::Failed(error) => Error::device(error),
                        },
                    )?,
                };
                // It is freed on the first stream, which waits for all streams that use it.
                (address, _) = memory.device_ptr_mut(self.stream);
                self.scratch.push(memory);
            }
            self.lanes.push(Lane { scratch: address, arguments: Vec::new() });
        }
        if self.capture == Capture::Wanted {
            // Stages may allocate, which the other modes forbid.
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            let context = self.stream.context();
            let failed = |error| driver_error(context, "cuStreamBeginCapture", error);
            self.stream.begin_capture(mode).map_err(failed)?;
            self.capture = Capture::Begun;
        }
        // The work of the first stream includes the allocations.
        for stream in self.more.iter().take(self.lanes.len().saturating_sub(1)) {
            let failed = |error| driver_error(stream.context(), "cuStreamWaitEvent", error);
            stream.join(self.stream).map_err(failed)?;
            self.forked += 1;
        }
        Ok(())
    }

    fn prepare(&mut self, plan: &PipelinePlan) -> Result<(), (usize, StageError)> {
        let last = plan.remainder().unwrap_or_else(|| plan.chunk_items());
        for (index, stage) in self.stages.iter_mut().enumerate() {
            if let StageWork::Product(product) = stage {
                let items = [plan.chunk_items(), last];
                product
                    .prepare(self.scheduler.guard(), items)
                    .map_err(|error| (index, error.into()))?;
            }
        }
        for place in 0..self.lanes.len() {
            for index in 0..self.stages.len() {
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
        for (lane, chunk) in chunks.iter().enumerate() {
            for stage in 0..self.stages.len() {
                let ran = self.run_stage(Step { plan, chunk, lane, stage });
                ran.map_err(|error| self.failure(*chunk, stage, error))?;
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> StageResult {
        for place in 0..self.lanes.len() {
            self.scheduler.synchronize(self.stream_of(place))?;
        }
        self.leave();
        Ok(())
    }
}

impl<'r, 'a> OnStreams<'r, 'a> {
    /// A run on a stream and further streams. Every stage must be on the device.
    pub(crate) fn new(
        scheduler: Scheduler<'r>,
        pipeline: &'r mut Pipeline<'a>,
        buffers: Vec<Option<DeviceRange>>,
        (stream, more): (&'r Arc<CudaStream>, &'r [Arc<CudaStream>]),
    ) -> Self {
        Self {
            scheduler,
            definition: &pipeline.definition,
            stages: &mut pipeline.work,
            buffers,
            stream,
            more,
            forked: 0,
            scratch: Vec::new(),
            keeper: None,
            raw: None,
            lanes: Vec::new(),
            launches: 0,
            capture: Capture::No,
            is_left: true,
            is_stuck: false,
        }
    }

    /// Uses the caller's scratch where it is large enough, and keeps scratch for later runs.
    pub(crate) fn keep_scratch(
        &mut self,
        mut keeper: Option<&'r mut PipelineScratch>,
        raw: Option<DeviceRange>,
    ) {
        if let Some(keeper) = &mut keeper {
            self.scratch = keeper.take(self.stream);
        }
        (self.keeper, self.raw) = (keeper, raw);
    }

    pub(crate) fn stream_of(&self, lane: usize) -> &'r Arc<CudaStream> {
        let further = lane.checked_sub(1).and_then(|index| self.more.get(index));
        further.unwrap_or(self.stream)
    }

    /// The checked arguments of the stage at `index`, if it launches a kernel.
    fn arguments(
        &self,
        lane: usize,
        index: usize,
        plan: &PipelinePlan,
    ) -> Result<Option<RawArgs<'a>>, LaunchError> {
        let (Some(StageWork::Kernel { kernel, arguments }), Some(launches)) =
            (self.stages.get(index), plan.launches_of(index))
        else {
            return Ok(None);
        };
        let mut values = RawArgs::new();
        for argument in arguments {
            match argument {
                Argument::Value(add) => add(&mut values),
                Argument::Buffer { id, offset } => {
                    let place = self.place(lane, id.index, plan).unwrap_or_default();
                    place.add_to(&mut values, *offset);
                }
            }
        }
        self.scheduler.prepare(kernel, self.stream_of(lane), launches, &values)?;
        Ok(Some(values))
    }

    /// Where the buffer at `index` is.
    fn place(&self, lane: usize, index: usize, plan: &PipelinePlan) -> Option<Place> {
        if let Some((offset, _)) = self.definition.scratch_place(index, plan, plan.chunk_items()) {
            let base = self.lanes.get(lane)?.scratch.saturating_add(offset);
            return Some(Place { base, ..Place::default() });
        }
        let DeviceRange { address, bytes } = (*self.buffers.get(index)?)?;
        let bytes_per_item = self.definition.buffers.get(index)?.extent.per_item();
        Some(Place { base: address, bytes_per_item, bytes })
    }

    fn run_stage(&mut self, step: Step<'_>) -> StageResult {
        self.resume()?;
        self.check_capture(self.stream_of(step.lane))?;
        self.copy(step, false)?;
        self.submit_stage(step)?;
        self.copy(step, true)
    }

    fn submit_stage(&mut self, step: Step<'_>) -> StageResult {
        let Step { plan, chunk, lane, stage: index } = step;
        let stream = self.stream_of(lane);
        let views = self.views(step);
        if matches!(self.stages.get(index), Some(StageWork::Call { .. })) {
            self.leave();
        }
        let kernel = match self.stages.get_mut(index) {
            Some(StageWork::Kernel { kernel, .. }) => kernel,
            Some(StageWork::Product(product)) => {
                let mut operands = [None; 6];
                for (address, buffer) in operands.iter_mut().zip(product.operands()) {
                    *address = buffer.map(|buffer| views.address(buffer)).transpose()?;
                }
                // SAFETY: `Pipeline::scheduler` checked that the stream is of the product's context. The chunk's
                // memory is valid as below.
                unsafe { product.submit(stream, chunk.items, &operands) }?;
                return Ok(());
            }
            Some(StageWork::Call { call, .. }) => {
                let called = catch_panic(|| call(stream, chunk, &views));
                let resumed = self.resume();
                return called.and(resumed);
            }
            // `check_run` checked that every stage is on the device.
            _ => return Ok(()),
        };
        let lane = self.lanes.get(lane).and_then(|lane| lane.arguments.get(index)?.as_ref());
        let (Some(arguments), Some(planned)) = (lane, plan.launch(index, *chunk)) else {
            return Err(ArgsError::NoBatch { index: 0 }.into());
        };
        // SAFETY: `Pipeline::scheduler` checked the kernel, and `arguments` prepared the stage's launches on this stream.
        // `resume` made the context current. The caller of `Module::kernel` vouches for launches with arguments of
        // the declared kinds, which `prepare` checked. The caller's memory is borrowed and long enough for
        // all items. Its `MemoryUses` order later uses after the first stream, which waits for the others before
        // scratch is freed and before the run returns. Scratch has the bytes of the buffer for the chunk's
        // items, and nothing else uses it meanwhile: the stages of a chunk run in order on one stream, and
        // each stream has its own scratch. Memory that several chunks may write is per item, else the plan
        // has one chunk in flight. `capture_launches` vouches for a graph.
        unsafe { self.scheduler.launch(kernel, stream, &planned, arguments, plan.len()) }?;
        self.launches = self.launches.saturating_add(1);
        Ok(())
    }

    /// Copies the chunk's items of buffers in host memory to scratch before the stage, or `back` after it.
    fn copy(&self, step: Step<'_>, back: bool) -> StageResult {
        let Step { plan, chunk, lane, stage } = step;
        for (buffer, per_item) in self.definition.copies(stage, back) {
            let (Some(Some(memory)), Some(place)) =
                (self.buffers.get(buffer), self.place(lane, buffer, plan))
            else {
                continue;
            };
            // `check_memory` checked that the memory has all items, so this is in the address space.
            let from_start = chunk.start.saturating_mul(per_item);
            let host = usize::try_from(memory.address.saturating_add(from_start))?;
            let bytes = usize::try_from(chunk.items.saturating_mul(per_item))?;
            let (device, stream) = (place.address(chunk), self.stream_of(lane));
            let (call, status) = if back {
                let to = core::ptr::with_exposed_provenance_mut(host);
                // SAFETY: scratch has the bytes of the buffer for the chunk's items, and the caller's pinned
                // memory, which `self` borrows, the bytes of all items. Other uses of scratch are on this
                // stream. `MemoryUses` orders other uses of the pinned memory before and after the first stream's
                // work. No other chunk has these items.
                let status =
                    unsafe { sys::cuMemcpyDtoHAsync_v2(to, device, bytes, stream.cu_stream()) };
                ("cuMemcpyDtoHAsync", status)
            } else {
                let from = core::ptr::with_exposed_provenance(host);
                // SAFETY: as for the copy to the host: scratch and pinned memory have the bytes, and other uses are
                // ordered.
                let status =
                    unsafe { sys::cuMemcpyHtoDAsync_v2(device, from, bytes, stream.cu_stream()) };
                ("cuMemcpyHtoDAsync", status)
            };
            let failed = |error| driver_error(stream.context(), call, error);
            status.result().map_err(failed)?;
        }
        Ok(())
    }

    fn views(&self, Step { plan, chunk, lane, stage }: Step<'_>) -> DeviceViews<'r> {
        let stage = self.definition.stages.get(stage);
        let uses = stage.iter().flat_map(|stage| &stage.uses);
        let view = |&(buffer, access): &(usize, _)| {
            let extent = self.definition.buffers.get(buffer)?.extent;
            let bytes = u64::try_from(extent.bytes(chunk.items)).unwrap_or(u64::MAX);
            let address = self.place(lane, buffer, plan)?.address(chunk);
            Some((buffer, access, DeviceRange { address, bytes }))
        };
        let views = uses.filter_map(view).collect();
        let stage = stage.map_or("", |stage| &stage.name);
        DeviceViews { definition: self.definition, stage, views }
    }

    /// The failure of a chunk. In a capture no smaller chunk is tried, because work in the scratch of this
    /// plan is captured already.
    fn failure(&mut self, chunk: Chunk, stage: usize, error: StageError) -> ChunkFailure {
        // The caller may call a monitor next.
        self.leave();
        let mut error = Error::caused_by(ErrorKind::Stage, error);
        if self.capture == Capture::Begun && error.kind() == ErrorKind::OutOfMemory {
            error = error.with_kind(ErrorKind::Stage);
        }
        ChunkFailure { chunk, stage, error: error.into() }
    }

    /// Ends the capture, and returns its graph, if it has any work.
    pub(crate) fn end_capture(&mut self) -> Result<Option<CudaGraph>, cudarc::driver::DriverError> {
        self.join();
        if self.capture != Capture::Begun {
            return Ok(None);
        }
        self.capture = Capture::No;
        self.stream.end_capture(sys::CUgraphInstantiate_flags(0))
    }

    /// Makes the first stream wait for the others.
    fn join(&mut self) {
        for stream in self.more.iter().take(self.forked) {
            if self.capture == Capture::Begun {
                // A failure invalidates the capture, and its end returns the error.
                let _ = self.stream.join(stream);
            } else {
                join(self.stream, stream);
            }
        }
        self.forked = 0;
    }
}

impl Drop for OnStreams<'_, '_> {
    fn drop(&mut self) {
        // Joins the streams before the first one frees scratch or reuses it.
        let _discarded = self.end_capture();
        if let Some(keeper) = &mut self.keeper {
            keeper.keep(core::mem::take(&mut self.scratch));
        }
    }
}

/// Refuses streams that are being captured, unless `capture_launches` allows it.
pub(crate) fn check_captures(
    scheduler: &Scheduler<'_>,
    stream: &Arc<CudaStream>,
    more: &[Arc<CudaStream>],
) -> Result<(), Error> {
    for stream in core::iter::once(stream).chain(more) {
        if scheduler.is_captured(stream).map_err(Error::device)? {
            return Err(Error::captured());
        }
    }
    Ok(())
}

/// Makes `stream` wait for the work of `other`. If that fails, the caller waits.
pub(crate) fn join(stream: &CudaStream, other: &CudaStream) {
    let joined = stream.join(other);
    let context = stream.context();
    if joined.is_err() {
        context.record_err(other.synchronize());
    }
    context.record_err(joined);
}
