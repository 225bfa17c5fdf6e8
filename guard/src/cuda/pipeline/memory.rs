//! The memory of one run of a pipeline on a device: device memory, or pinned host memory.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, PinnedHostSlice};

use crate::cuda::arguments::Args;
use crate::cuda::arguments::memory::{Memory, MemoryMut};
use crate::cuda::arguments::uses::is_of_thread;
use crate::cuda::pipeline::device_stage::DeviceRange;
use crate::dim::saturated;
use crate::pipeline::buffer::Buffer;
use crate::pipeline::definition::Definition;
use crate::pipeline::error::MemoryError;
use crate::pipeline::memory::Given;
use crate::pipeline::progress::Monitor;
use crate::plan::arguments::MAX_ARGS;
use crate::plan::chunks::Chunk;
use crate::plan::slot::Slot;

/// The memory and the streams of one run of a pipeline on a device: for `Guard::run_pipeline`.
///
/// The run waits for earlier work on the memory, and later work on it waits for the run, as for launches
/// with [`Args`].
#[derive(Debug)]
#[must_use]
pub struct DeviceMemory<'m> {
    pub(super) args: Args<'m>,
    pub(super) stream: &'m Arc<CudaStream>,
    pub(super) more: &'m [Arc<CudaStream>],
    /// The buffer of each argument.
    pub(super) given: Vec<Given>,
    pub(super) scratch: Option<&'m mut PipelineScratch>,
    /// Scratch of another CUDA binding.
    pub(super) raw_scratch: Option<DeviceRange>,
    pub(super) monitor: Option<&'m mut dyn Monitor>,
}

/// Scratch that is kept from one run to the next: [`DeviceMemory::scratch`].
///
/// By default each run allocates scratch and frees it. The driver's pool returns freed memory to the device
/// when the host waits for the stream, so a loop of runs and waits allocates new memory every time.
#[derive(Debug, Default)]
pub struct PipelineScratch {
    /// Allocated on one stream, and used in its order.
    memory: Vec<CudaSlice<u8>>,
}

impl PipelineScratch {
    /// Empty: the first run allocates the memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { memory: Vec::new() }
    }

    /// The bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.memory.iter().map(|memory| saturated(memory.num_bytes())).sum()
    }

    /// Takes the memory of `stream`, and frees memory of another stream.
    pub(super) fn take(&mut self, stream: &Arc<CudaStream>) -> Vec<CudaSlice<u8>> {
        let mut memory = core::mem::take(&mut self.memory);
        memory.retain(|memory| Arc::ptr_eq(memory.stream(), stream));
        memory
    }

    /// Keeps the memory of a run, unless its stream is the per-thread default stream.
    pub(super) fn keep(&mut self, mut memory: Vec<CudaSlice<u8>>) {
        memory.retain(|memory| !is_of_thread(memory.stream()));
        self.memory = memory;
    }
}

impl<'m> DeviceMemory<'m> {
    /// No memory yet, for a run on `stream`.
    pub fn new(stream: &'m Arc<CudaStream>) -> Self {
        Self {
            args: Args::new(stream),
            stream,
            more: &[],
            given: Vec::new(),
            scratch: None,
            raw_scratch: None,
            monitor: None,
        }
    }

    /// Adds streams: chunks in flight alternate between all of them. Their work begins after the earlier
    /// work of the first stream, whose later work waits for them.
    pub const fn on_streams(mut self, more: &'m [Arc<CudaStream>]) -> Self {
        self.more = more;
        self
    }

    /// Lets `monitor` watch the run. The run waits for the chunks in flight before each report, so the
    /// device is idle for a moment between them.
    pub fn monitor(self, monitor: &'m mut dyn Monitor) -> Self {
        Self { monitor: Some(monitor), ..self }
    }

    /// Reuses the scratch of an earlier run on the first stream, of this pipeline or another, and keeps it
    /// for the next run. Scratch that is too small, or of another stream, is freed.
    pub const fn scratch(mut self, scratch: &'m mut PipelineScratch) -> Self {
        self.scratch = Some(scratch);
        self
    }

    /// The memory of an input.
    pub fn read<T, S>(mut self, buffer: Buffer<T>, memory: &'m S) -> Self
    where
        S: Memory<T> + ?Sized,
    {
        self.give(buffer, memory.num_bytes(), false, false);
        self.args.read(memory);
        self
    }

    /// The memory of an output, an in-place buffer or an accumulator.
    pub fn write<T, S>(mut self, buffer: Buffer<T>, memory: &'m mut S) -> Self
    where
        S: MemoryMut<T> + ?Sized,
    {
        self.give(buffer, memory.num_bytes(), true, false);
        self.args.write(memory);
        self
    }

    /// The memory of an input that is declared to be
    /// [in host memory](crate::pipeline::PipelineBuilder::in_host_memory).
    pub fn read_host<T>(mut self, buffer: Buffer<T>, memory: &'m PinnedHostSlice<T>) -> Self {
        self.give(buffer, memory.num_bytes(), false, true);
        self.args.read_host(memory);
        self
    }

    /// As [`Self::read_host`], for an output or an in-place buffer.
    pub fn write_host<T>(mut self, buffer: Buffer<T>, memory: &'m mut PinnedHostSlice<T>) -> Self {
        self.give(buffer, memory.num_bytes(), true, true);
        self.args.write_host(memory);
        self
    }

    /// As [`Self::read`], with `bytes` of another CUDA binding's memory at `address`.
    ///
    /// # Safety
    ///
    /// The memory is on the device of the stream's context, holds elements `T`, and lives until the run's
    /// work on the first stream is done. Its earlier writes are ordered before the run on that stream, and
    /// nothing else writes it meanwhile. If the run is captured into a graph, this holds for each launch of
    /// the graph.
    pub unsafe fn read_raw<T>(mut self, buffer: Buffer<T>, address: u64, bytes: u64) -> Self {
        self.given.push(Given { id: buffer.id, bytes, writable: false, on_host: false });
        self.args.push(Slot::Address(address));
        self
    }

    /// As [`Self::write`], with `bytes` of another CUDA binding's memory at `address`.
    ///
    /// # Safety
    ///
    /// As of [`Self::read_raw`], and nothing else reads the memory meanwhile.
    pub unsafe fn write_raw<T>(mut self, buffer: Buffer<T>, address: u64, bytes: u64) -> Self {
        self.given.push(Given { id: buffer.id, bytes, writable: true, on_host: false });
        self.args.push(Slot::Address(address));
        self
    }

    /// Uses `bytes` of another CUDA binding's memory at `address`, a multiple of 256, as scratch. If the
    /// plan needs [more](crate::pipeline::PipelinePlan::bytes), the run allocates its scratch as usual.
    ///
    /// # Safety
    ///
    /// As of [`Self::write_raw`].
    pub const unsafe fn scratch_raw(mut self, address: u64, bytes: u64) -> Self {
        self.raw_scratch = Some(DeviceRange { address, bytes });
        self
    }

    fn give<T>(&mut self, buffer: Buffer<T>, bytes: usize, writable: bool, on_host: bool) {
        self.given.push(Given { id: buffer.id, bytes: saturated(bytes), writable, on_host });
    }

    /// The memory of each buffer, `None` for scratch.
    pub(super) fn ranges(
        &self,
        definition: &Definition,
    ) -> Result<Vec<Option<DeviceRange>>, MemoryError> {
        let Self { args, given, .. } = self;
        if given.len() > MAX_ARGS {
            // `Args` would not order the uses of more memory.
            return Err(MemoryError::TooMany { given: given.len(), most: MAX_ARGS });
        }
        let ranges = given.iter().zip(args.list.slots()).map(|(given, slot)| {
            let address = slot.bits(&Chunk::only(0));
            (*given, DeviceRange { address, bytes: given.bytes })
        });
        definition.check_memory(ranges)
    }
}
