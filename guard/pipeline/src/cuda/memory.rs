//! The memory of one run of a pipeline on a device: device memory, or pinned host memory.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, PinnedHostSlice};

use crate::buffer::{Buffer, saturated};
use crate::cuda::views::DeviceRange;
use crate::definition::Definition;
use crate::error::Error;
use crate::memory::BoundMemory;
use crate::progress::Monitor;
use gridguard::MAX_ARGS;
use gridguard::cuda::{Memory, MemoryMut, MemoryUses};

/// The memory and the streams of one run of a pipeline on a device: for [`Pipeline::run`](crate::Pipeline::run).
///
/// The run waits for earlier work on the memory, and later work on it waits for the run, as for launches
/// with [`Args`](gridguard::cuda::Args).
#[derive(Debug)]
#[must_use]
pub struct DeviceMemory<'m> {
    pub(crate) uses: MemoryUses<'m>,
    pub(crate) stream: &'m Arc<CudaStream>,
    pub(crate) more: &'m [Arc<CudaStream>],
    /// The memory of buffers, and its address.
    pub(crate) bound: Vec<(BoundMemory, u64)>,
    pub(crate) scratch: Option<&'m mut PipelineScratch>,
    /// Scratch of another CUDA binding.
    pub(crate) raw_scratch: Option<DeviceRange>,
    pub(crate) monitor: Option<&'m mut dyn Monitor>,
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
    pub const fn new() -> Self {
        Self { memory: Vec::new() }
    }

    /// The bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.memory.iter().map(|memory| saturated(memory.num_bytes())).sum()
    }

    /// Takes the memory of `stream`, and frees memory of another stream.
    pub(crate) fn take(&mut self, stream: &Arc<CudaStream>) -> Vec<CudaSlice<u8>> {
        let mut memory = core::mem::take(&mut self.memory);
        memory.retain(|memory| Arc::ptr_eq(memory.stream(), stream));
        memory
    }

    /// Keeps the memory of a run, unless its stream is the per-thread default stream.
    pub(crate) fn keep(&mut self, mut memory: Vec<CudaSlice<u8>>) {
        memory.retain(|memory| !is_of_thread(memory.stream()));
        self.memory = memory;
    }
}

impl<'m> DeviceMemory<'m> {
    /// No memory yet, for a run on `stream`.
    pub fn new(stream: &'m Arc<CudaStream>) -> Self {
        Self {
            uses: MemoryUses::new(stream),
            stream,
            more: &[],
            bound: Vec::new(),
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
        let bytes = saturated(memory.num_bytes());
        let address = self.uses.read(memory);
        self.bind(buffer, address, bytes, false, false)
    }

    /// The memory of an output, an in-place buffer or an accumulator.
    pub fn write<T, S>(mut self, buffer: Buffer<T>, memory: &'m mut S) -> Self
    where
        S: MemoryMut<T> + ?Sized,
    {
        let bytes = saturated(memory.num_bytes());
        let address = self.uses.write(memory);
        self.bind(buffer, address, bytes, true, false)
    }

    /// The memory of an input that is declared to be
    /// [in host memory](crate::PipelineBuilder::in_host_memory).
    pub fn read_host<T>(mut self, buffer: Buffer<T>, memory: &'m PinnedHostSlice<T>) -> Self {
        let bytes = saturated(memory.num_bytes());
        let address = self.uses.read_host(memory);
        self.bind(buffer, address, bytes, false, true)
    }

    /// As [`Self::read_host`], for an output or an in-place buffer.
    pub fn write_host<T>(mut self, buffer: Buffer<T>, memory: &'m mut PinnedHostSlice<T>) -> Self {
        let bytes = saturated(memory.num_bytes());
        let address = self.uses.write_host(memory);
        self.bind(buffer, address, bytes, true, true)
    }

    /// As [`Self::read`], with `bytes` of another CUDA binding's memory at `address`.
    ///
    /// # Safety
    ///
    /// The memory is on the device of the stream's context, holds elements `T`, and lives until the run's
    /// work on the first stream is done. Its earlier writes are ordered before the run on that stream, and
    /// nothing else writes it meanwhile. If the run is captured into a graph, this holds for each launch of
    /// the graph.
    pub unsafe fn read_raw<T>(self, buffer: Buffer<T>, address: u64, bytes: u64) -> Self {
        self.bind(buffer, address, bytes, false, false)
    }

    /// As [`Self::write`], with `bytes` of another CUDA binding's memory at `address`.
    ///
    /// # Safety
    ///
    /// As of [`Self::read_raw`], and nothing else reads the memory meanwhile.
    pub unsafe fn write_raw<T>(self, buffer: Buffer<T>, address: u64, bytes: u64) -> Self {
        self.bind(buffer, address, bytes, true, false)
    }

    /// Uses `bytes` of another CUDA binding's memory at `address`, a multiple of 256, as scratch. If the
    /// plan needs [more](crate::PipelinePlan::bytes), the run allocates its scratch as usual.
    ///
    /// # Safety
    ///
    /// As of [`Self::write_raw`].
    pub const unsafe fn scratch_raw(mut self, address: u64, bytes: u64) -> Self {
        self.raw_scratch = Some(DeviceRange { address, bytes });
        self
    }

    fn bind<T>(
        mut self,
        buffer: Buffer<T>,
        address: u64,
        bytes: u64,
        writable: bool,
        on_host: bool,
    ) -> Self {
        self.bound.push((BoundMemory { id: buffer.id, bytes, writable, on_host }, address));
        self
    }

    /// The memory of each buffer, `None` for scratch.
    pub(crate) fn ranges(
        &self,
        definition: &Definition,
    ) -> Result<Vec<Option<DeviceRange>>, Error> {
        let bound = &self.bound;
        if bound.len() > MAX_ARGS {
            // `MemoryUses` would not order the uses of more memory.
            let given = bound.len();
            return Err(Error::memory(format!(
                "the pipeline has {given} buffers of the caller, the limit is {MAX_ARGS}"
            )));
        }
        let range = |&(bound, address): &(BoundMemory, u64)| {
            (bound, DeviceRange { address, bytes: bound.bytes })
        };
        definition.check_memory(bound.iter().map(range))
    }
}

/// Whether the stream is another one on each thread.
fn is_of_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == PER_THREAD
}

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;
