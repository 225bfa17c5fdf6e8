//! The caller's memory of a pipeline on a device: on that device, or pinned on the host.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, PinnedHostSlice};

use crate::cuda::arguments::Args;
use crate::cuda::arguments::memory::{Memory, MemoryMut, wide};
use crate::cuda::arguments::uses::is_of_thread;
use crate::cuda::pipeline::stage::DeviceRange;
use crate::pipeline::buffer::Buffer;
use crate::pipeline::definition::Definition;
use crate::pipeline::error::MemoryError;
use crate::pipeline::memory::Given;
use crate::plan::arguments::MAX_ARGS;
use crate::plan::chunks::Chunk;

/// The memory and the streams of one run of a pipeline on a device.
///
/// The run waits for earlier work on the memory, and later work on it waits for the run, as for launches
/// with [`Args`]. It stays on its thread.
#[derive(Debug)]
#[must_use]
pub struct DeviceMemory<'m> {
    pub(super) args: Args<'m>,
    pub(super) stream: &'m Arc<CudaStream>,
    pub(super) more: &'m [Arc<CudaStream>],
    /// What each of the arguments is for.
    pub(super) given: Vec<Given>,
    pub(super) scratch: Option<&'m mut PipelineScratch>,
    /// Scratch of another CUDA binding.
    pub(super) raw_scratch: Option<DeviceRange>,
}

/// Scratch that is kept from one run to the next: [`DeviceMemory::scratch`].
///
/// Without it each run allocates scratch and frees it. The driver's pool then hands it back to the device
/// whenever the host waits for the stream, so that a run in a loop with waits gets new memory every time.
#[derive(Debug, Default)]
pub struct PipelineScratch {
    /// Of the same stream. All of its uses come before what that stream does next.
    memory: Vec<CudaSlice<u8>>,
}

impl PipelineScratch {
    /// None yet: the first run allocates it.
    #[must_use]
    pub const fn new() -> Self {
        Self { memory: Vec::new() }
    }

    /// The bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.iter().map(|memory| wide(memory.num_bytes())).sum()
    }

    /// What is kept for `stream`, and nothing of another one.
    pub(super) fn take(&mut self, stream: &Arc<CudaStream>) -> Vec<CudaSlice<u8>> {
        let mut memory = core::mem::take(&mut self.memory);
        memory.retain(|memory| Arc::ptr_eq(memory.stream(), stream));
        memory
    }

    /// Keeps the memory of a run, unless its stream is another one on another thread.
    pub(super) fn keep(&mut self, mut memory: Vec<CudaSlice<u8>>) {
        memory.retain(|memory| !is_of_thread(memory.stream()));
        self.memory = memory;
    }
}

impl<'m> DeviceMemory<'m> {
    /// No memory yet, for a run on `stream`.
    pub fn new(stream: &'m Arc<CudaStream>) -> Self {
        let (args, given) = (Args::new(stream), Vec::new());
        Self { args, stream, more: &[], given, scratch: None, raw_scratch: None }
    }

    /// The same on further streams: chunks in flight take turns on all of them. They begin after the work
    /// that the first stream has, and its later work waits for them.
    pub const fn on_streams(mut self, more: &'m [Arc<CudaStream>]) -> Self {
        self.more = more;
        self
    }

    /// The same with scratch that `scratch` has from an earlier run on the first stream, of this pipeline or
    /// another, and that it keeps for the next. What is too small, or of another stream, is freed.
    pub const fn scratch(mut self, scratch: &'m mut PipelineScratch) -> Self {
        self.scratch = Some(scratch);
        self
    }

    /// The memory of an input.
    pub fn read<T, S>(mut self, buffer: Buffer<T>, memory: &'m S) -> Self
    where
        S: Memory<T> + ?Sized,
    {
        let bytes = wide(memory.num_bytes());
        self.given.push(Given { id: buffer.id, bytes, writable: false, on_host: false });
        self.args.read(memory);
        self
    }

    /// The memory of an output, an in-place buffer or an accumulator.
    pub fn write<T, S>(mut self, buffer: Buffer<T>, memory: &'m mut S) -> Self
    where
        S: MemoryMut<T> + ?Sized,
    {
        let bytes = wide(memory.num_bytes());
        self.given.push(Given { id: buffer.id, bytes, writable: true, on_host: false });
        self.args.write(memory);
        self
    }

    /// As [`Self::read`], of an input that is
    /// [in host memory](crate::pipeline::PipelineBuilder::in_host_memory). The run waits for earlier work on
    /// it; cudarc waits for the run before it gives or frees the memory.
    pub fn read_host<T>(mut self, buffer: Buffer<T>, memory: &'m PinnedHostSlice<T>) -> Self {
        let bytes = wide(memory.num_bytes());
        self.given.push(Given { id: buffer.id, bytes, writable: false, on_host: true });
        self.args.read_host(memory);
        self
    }

    /// As [`Self::read_host`], of an output or an in-place buffer.
    pub fn write_host<T>(mut self, buffer: Buffer<T>, memory: &'m mut PinnedHostSlice<T>) -> Self {
        let bytes = wide(memory.num_bytes());
        self.given.push(Given { id: buffer.id, bytes, writable: true, on_host: true });
        self.args.write_host(memory);
        self
    }

    /// As [`Self::read`], with the `bytes` of another CUDA binding's memory at `address`.
    ///
    /// # Safety
    ///
    /// They are on the device of the stream's context, hold elements `T`, and live until the run's work on
    /// the first stream is done. What wrote them is ordered before the run on that stream, and nothing else
    /// writes them meanwhile. Where the run is captured into a graph, this holds for each of its launches.
    pub unsafe fn read_raw<T>(mut self, buffer: Buffer<T>, address: u64, bytes: u64) -> Self {
        self.given.push(Given { id: buffer.id, bytes, writable: false, on_host: false });
        self.args.address(address);
        self
    }

    /// As [`Self::write`], with the `bytes` of another CUDA binding's memory at `address`.
    ///
    /// # Safety
    ///
    /// As of [`Self::read_raw`], and nothing else reads them meanwhile.
    pub unsafe fn write_raw<T>(mut self, buffer: Buffer<T>, address: u64, bytes: u64) -> Self {
        self.given.push(Given { id: buffer.id, bytes, writable: true, on_host: false });
        self.args.address(address);
        self
    }

    /// As [`Self::scratch`], with the `bytes` of another CUDA binding's memory at `address`, which is a multiple
    /// of 256. A plan that needs [more](crate::pipeline::PipelinePlan::bytes) has its scratch allocated as
    /// without it.
    ///
    /// # Safety
    ///
    /// As of [`Self::write_raw`].
    pub const unsafe fn scratch_raw(mut self, address: u64, bytes: u64) -> Self {
        self.raw_scratch = Some(DeviceRange { address, bytes });
        self
    }

    /// The caller's memory of each buffer, on the device or the host, `None` for scratch.
    pub(super) fn ranges(
        &self,
        definition: &Definition,
    ) -> Result<Vec<Option<DeviceRange>>, MemoryError> {
        let Self { args, given, .. } = self;
        if given.len() > MAX_ARGS {
            // Nothing would order the uses of the memory beyond.
            return Err(MemoryError::TooMany { given: given.len(), most: MAX_ARGS });
        }
        let places = definition.check_memory(given)?;
        let range = |place: Option<usize>| {
            let (given, slot) = (given.get(place?)?, args.values().slots().get(place?)?);
            Some(DeviceRange { address: slot.bits(&Chunk::only(0)), bytes: given.bytes })
        };
        Ok(places.into_iter().map(range).collect())
    }
}
