//! The caller's memory of a pipeline on a device: on that device, or pinned on the host.

use std::sync::Arc;

use cudarc::driver::{CudaStream, PinnedHostSlice};

use super::arguments::{Args, Memory, MemoryMut, wide};
use super::pipeline_stage::DeviceRange;
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
}

impl<'m> DeviceMemory<'m> {
    /// No memory yet, for a run on `stream`.
    pub fn new(stream: &'m Arc<CudaStream>) -> Self {
        Self { args: Args::new(stream), stream, more: &[], given: Vec::new() }
    }

    /// The same on further streams: chunks in flight take turns on all of them. They begin after the work
    /// that the first stream has, and its later work waits for them.
    pub const fn on_streams(mut self, more: &'m [Arc<CudaStream>]) -> Self {
        self.more = more;
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
