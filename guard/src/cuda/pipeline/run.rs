//! Submits the chunks of a pipeline to streams of a device: chunks in flight alternate between them.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaGraph, CudaSlice, CudaStream, DevicePtrMut, sys};

use crate::cuda::arguments::uses::join;
use crate::cuda::driver::history::Watch;
use crate::cuda::driver::library::{from_cudarc, handle};
use crate::cuda::driver::symbols::Driver;
use crate::cuda::error::LaunchError;
use crate::cuda::launch::capture::may_capture;
use crate::cuda::launch::{Contract, Submission, Values, prepare};
use crate::cuda::pipeline::device_stage::{DeviceRange, DeviceViews};
use crate::cuda::pipeline::memory::PipelineScratch;
use crate::dim::saturated;
use crate::guard::Guard;
use crate::pipeline::bodies::{Body, Pipeline};
use crate::pipeline::buffer::Extent;
use crate::pipeline::definition::Definition;
use crate::pipeline::error::{MemoryError, RunError, StageError};
use crate::pipeline::plan::PipelinePlan;
use crate::pipeline::run::{Backend, ChunkFailure};
use crate::plan::arguments::{ArgsError, ArgumentList};
use crate::plan::backoff::AllocationError;
use crate::plan::chunks::Chunk;
use crate::plan::run::catch_panic;
use crate::plan::slot::Slot;

/// A run on the streams of a device.
pub(super) struct OnStreams<'r, 'a> {
    guard: &'r Guard,
    pub(super) driver: &'static Driver,
    pub(super) definition: &'r Definition,
    stages: &'r mut [Body<'a>],
    /// The caller's memory of each buffer, on the device or the host.
    buffers: Vec<Option<DeviceRange>>,
    pub(super) stream: &'r Arc<CudaStream>,
    pub(super) more: &'r [Arc<CudaStream>],
    watch: Watch,
    /// The number of further streams with work that the first stream does not wait for yet.
    pub(super) forked: usize,
    /// The scratch of each chunk in flight, freed on the first stream. Before the first allocation, scratch
    /// of earlier runs.
    pub(super) scratch: Vec<CudaSlice<u8>>,
    /// Keeps the scratch for later runs.
    keeper: Option<&'r mut PipelineScratch>,
    /// Scratch of another CUDA binding.
    raw: Option<DeviceRange>,
    lanes: Vec<Lane<'a>>,
    /// The number of submitted launches.
    pub(super) launches: u64,
    pub(super) capture: Capture,
    /// Whether the caller's code may have run since the last `resume`.
    pub(super) is_left: bool,
    /// Events that `leave` recorded on each stream with work.
    pub(super) marks: Vec<CudaEvent>,
    /// Whether a stream is in a capture that cannot be ended. All work is done then.
    pub(super) is_stuck: bool,
}

/// Whether the work becomes a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Capture {
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

/// One of the chunks in flight.
struct Lane<'a> {
    /// The address of the scratch.
    scratch: u64,
    /// The arguments of each stage that launches a kernel.
    arguments: Vec<Option<ArgumentList<'a>>>,
}

impl Backend for OnStreams<'_, '_> {
    fn allocate(&mut self, plan: &PipelinePlan) -> Result<(), StageError> {
        self.resume()?;
        self.join();
        let bytes = plan.scratch_bytes();
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
                    None => {
                        self.driver.allocate(self.stream, bytes).map_err(|error| match error {
                            AllocationError::OutOfMemory(error) => StageError::out_of_memory(error),
                            AllocationError::Failed(error) => error.into(),
                        })?
                    }
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
            let failed = |error| from_cudarc(Some(context), "cuStreamBeginCapture", error);
            self.stream.begin_capture(mode).map_err(failed)?;
            self.capture = Capture::Begun;
        }
        // The work of the first stream includes the allocations.
        for stream in self.more.iter().take(self.lanes.len().saturating_sub(1)) {
            let failed = |error| from_cudarc(Some(stream.context()), "cuStreamWaitEvent", error);
            stream.join(self.stream).map_err(failed)?;
            self.forked += 1;
        }
        Ok(())
    }

    fn prepare(&mut self, plan: &PipelinePlan) -> Result<(), (usize, StageError)> {
        let last = plan.chunks().last().map_or(0, |chunk| chunk.items);
        for (index, stage) in self.stages.iter_mut().enumerate() {
            if let Body::Product(product) = stage {
                let items = [plan.chunk_items(), last];
                product.prepare(self.guard, items).map_err(|error| (index, error.into()))?;
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

    fn wait(&mut self) -> Result<(), StageError> {
        for place in 0..self.lanes.len() {
            self.guard.synchronize(self.stream_of(place))?;
        }
        self.leave()
    }
}

impl<'r, 'a> OnStreams<'r, 'a> {
    /// A run on a stream and further streams. Every stage must be on the device.
    pub(super) fn new(
        guard: &'r Guard,
        driver: &'static Driver,
        pipeline: &'r mut Pipeline<'a>,
        buffers: Vec<Option<DeviceRange>>,
        (stream, more): (&'r Arc<CudaStream>, &'r [Arc<CudaStream>]),
        watch: Watch,
    ) -> Self {
        Self {
            guard,
            driver,
            definition: &pipeline.definition,
            stages: &mut pipeline.bodies,
            buffers,
            stream,
            more,
            watch,
            forked: 0,
            scratch: Vec::new(),
            keeper: None,
            raw: None,
            lanes: Vec::new(),
            launches: 0,
            capture: Capture::No,
            is_left: true,
            marks: Vec::new(),
            is_stuck: false,
        }
    }

    /// Uses the caller's scratch where it is large enough, and keeps scratch for later runs.
    pub(super) fn keep_scratch(
        &mut self,
        mut keeper: Option<&'r mut PipelineScratch>,
        raw: Option<DeviceRange>,
    ) {
        if let Some(keeper) = &mut keeper {
            self.scratch = keeper.take(self.stream);
        }
        (self.keeper, self.raw) = (keeper, raw);
    }

    pub(super) fn stream_of(&self, lane: usize) -> &'r Arc<CudaStream> {
        let further = lane.checked_sub(1).and_then(|index| self.more.get(index));
        further.unwrap_or(self.stream)
    }

    /// The checked arguments of the stage at `index`, if it launches a kernel.
    fn arguments(
        &self,
        lane: usize,
        index: usize,
        plan: &PipelinePlan,
    ) -> Result<Option<ArgumentList<'a>>, LaunchError> {
        let (Some(Body::Kernel { kernel, arguments, buffers }), Some(launches)) =
            (self.stages.get(index), plan.launches_of(index))
        else {
            return Ok(None);
        };
        let arguments = arguments.list.replaced(|place, _| {
            let (_, id, before) = buffers.iter().find(|(other, ..)| *other == place)?;
            Some(self.slot(lane, id.index, plan)?.after(*before))
        });
        let items = self.definition.items;
        if launches.shares_blocks() {
            arguments.check_values(items)?;
        }
        let stream = handle(self.stream_of(lane));
        // SAFETY: `self` borrows the stream, whose context `bind_run` made current.
        unsafe {
            prepare(
                kernel,
                stream,
                launches.largest_launch(),
                Some(items),
                Values::Args(&arguments),
            )
        }?;
        Ok(Some(arguments))
    }

    /// The argument that is the buffer at `index`.
    fn slot(&self, lane: usize, index: usize, plan: &PipelinePlan) -> Option<Slot<'a>> {
        if let Some((offset, _)) = self.definition.scratch_place(index, plan, plan.chunk_items()) {
            return Some(Slot::Address(self.lanes.get(lane)?.scratch.saturating_add(offset)));
        }
        let range = (*self.buffers.get(index)?)?;
        Some(match self.definition.buffers.get(index)?.extent {
            Extent::PerItem(bytes) => Slot::Items {
                base: range.address,
                stride_bytes: bytes,
                span_bytes: bytes,
                reach_bytes: range.bytes,
            },
            Extent::Fixed(_) => Slot::Address(range.address),
        })
    }

    fn run_stage(&mut self, step: Step<'_>) -> Result<(), StageError> {
        self.resume()?;
        self.check_capture(step.lane)?;
        self.copy(step, false)?;
        self.submit_stage(step)?;
        self.copy(step, true)
    }

    fn submit_stage(&mut self, step: Step<'_>) -> Result<(), StageError> {
        let Step { plan, chunk, lane, stage: index } = step;
        let stream = self.stream_of(lane);
        let views = self.views(step);
        if matches!(self.stages.get(index), Some(Body::Call { .. })) {
            self.leave()?;
        }
        let kernel = match self.stages.get_mut(index) {
            Some(Body::Kernel { kernel, .. }) => kernel,
            Some(Body::Product(product)) => {
                let mut operands = [None; 6];
                for (address, buffer) in operands.iter_mut().zip(product.operands()) {
                    *address = buffer.map(|buffer| views.address(buffer)).transpose()?;
                }
                // SAFETY: `bind_run` checked that the stream is of the product's context. The chunk's
                // memory is valid as below.
                unsafe { product.submit(stream, chunk.items, &operands) }?;
                return Ok(());
            }
            Some(Body::Call { call, .. }) => {
                let called = catch_panic(|| call(stream, chunk, &views));
                let called = called.unwrap_or_else(|panic| Err(StageError::Panicked(panic)));
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
        // SAFETY: `self` borrows the stream, which `bind_run` checked to be of the kernel's context. `resume`
        // made that context current. The caller of `Module::kernel` vouches for launches with arguments of
        // the declared kinds, which `prepare` checked. The caller's memory is borrowed and long enough for
        // all items. Its `Uses` order later uses after the first stream, which waits for the others before
        // scratch is freed and before the run returns. Scratch has the bytes of the buffer for the chunk's
        // items, and nothing else uses it meanwhile: the stages of a chunk run in order on one stream, and
        // each stream has its own scratch. Memory that several chunks may write is per item, else the plan
        // has one chunk in flight.
        let submission = unsafe {
            Submission::new(
                kernel,
                handle(stream),
                Values::Args(arguments),
                self.watch,
                Contract::Launched,
            )
        };
        // SAFETY: the plan is of the pipeline, whose stage has this kernel's limits, and `prepare` checked
        // its largest launch. Earlier work on the stream ends before it.
        unsafe {
            let (chunk, launch) = (&planned.chunk, &planned.launch);
            submission.send_and_record(chunk, &[], (chunk, launch), false, plan.len())
        }?;
        self.launches = self.launches.saturating_add(1);
        Ok(())
    }

    /// Copies the chunk's items of buffers in host memory to scratch before the stage, or `back` after it.
    fn copy(&self, step: Step<'_>, back: bool) -> Result<(), StageError> {
        let Step { plan, chunk, lane, stage } = step;
        for (buffer, per_item) in self.definition.copies(stage, back) {
            let (Some(Some(memory)), Some(slot)) =
                (self.buffers.get(buffer), self.slot(lane, buffer, plan))
            else {
                continue;
            };
            // `check_memory` checked that the memory has all items, so this is in the address space.
            let from_start = chunk.start.saturating_mul(per_item);
            let host = usize::try_from(memory.address.saturating_add(from_start))?;
            let bytes = usize::try_from(chunk.items.saturating_mul(per_item))?;
            let (device, stream) = (slot.bits(chunk), self.stream_of(lane));
            let (call, status) = if back {
                let to = core::ptr::with_exposed_provenance_mut(host);
                // SAFETY: scratch has the bytes of the buffer for the chunk's items, and the caller's pinned
                // memory, which `self` borrows, the bytes of all items. Other uses of scratch are on this
                // stream. `Uses` orders other uses of the pinned memory before and after the first stream's
                // work. No other chunk has these items.
                let status =
                    unsafe { sys::cuMemcpyDtoHAsync_v2(to, device, bytes, stream.cu_stream()) };
                ("cuMemcpyDtoHAsync", status)
            } else {
                let from = core::ptr::with_exposed_provenance(host);
                // SAFETY: as above.
                let status =
                    unsafe { sys::cuMemcpyHtoDAsync_v2(device, from, bytes, stream.cu_stream()) };
                ("cuMemcpyHtoDAsync", status)
            };
            let failed = |error| from_cudarc(Some(stream.context()), call, error);
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
            let address = self.slot(lane, buffer, plan)?.bits(chunk);
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
        let _ = self.leave();
        let error = match error {
            StageError::OutOfMemory(error) if self.capture == Capture::Begun => {
                StageError::Failed(error)
            }
            error => error,
        };
        ChunkFailure { chunk, stage, error }
    }

    /// Ends the capture, and returns its graph, if it has any work.
    pub(super) fn end_capture(&mut self) -> Result<Option<CudaGraph>, cudarc::driver::DriverError> {
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

/// Makes the context of the streams current. Refuses streams that are being captured, unless
/// `capture_launches` allows it.
pub(super) fn bind_streams(
    driver: &Driver,
    stream: &Arc<CudaStream>,
    more: &[Arc<CudaStream>],
) -> Result<(), RunError> {
    driver.bind(stream.context().cu_ctx().cast()).map_err(RunError::device)?;
    if may_capture() {
        return Ok(());
    }
    for stream in core::iter::once(stream).chain(more) {
        // SAFETY: the stream is borrowed, and its context current.
        if unsafe { driver.is_capturing(handle(stream)) }.map_err(RunError::device)? {
            return Err(MemoryError::Captured.into());
        }
    }
    Ok(())
}
