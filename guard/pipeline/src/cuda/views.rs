//! The work of stages on a device: arguments of kernels, calls, and the buffers that a call gets.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::buffer::{Access, Buffer, BufferId};
use crate::definition::Definition;
use crate::error::{Error, StageResult};
use gridguard::{Chunk, RawArgs};

/// The work of a stage that submits its own work.
pub(crate) type Call<'a> =
    dyn FnMut(&Arc<CudaStream>, &Chunk, &DeviceViews<'_>) -> StageResult + Send + 'a;

/// An argument of a stage's kernel.
pub(crate) enum Argument<'a> {
    /// The address of a buffer, after `offset` bytes; of a buffer per item, of each item.
    Buffer { id: BufferId, offset: u64 },
    /// Any other: adds itself.
    Value(Box<dyn Fn(&mut RawArgs<'a>) + Send + 'a>),
}

/// The buffers on the device that a stage declared: of a buffer per item, the part of the chunk's items.
#[derive(Debug)]
pub struct DeviceViews<'v> {
    pub(crate) definition: &'v Definition,
    pub(crate) stage: &'v str,
    pub(crate) views: Vec<(usize, Access, DeviceRange)>,
}

/// A range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceRange {
    /// The address of the first byte.
    pub address: u64,
    /// The size.
    pub bytes: u64,
}

impl DeviceViews<'_> {
    /// A buffer that the stage reads or updates. Work on the stage's stream may read it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::View`](crate::ErrorKind) if it declared something else.
    pub fn read<T>(&self, buffer: Buffer<T>) -> Result<DeviceRange, Error> {
        self.find(buffer.id, Access::reads).ok_or_else(|| self.not_read(buffer.id))
    }

    /// A buffer that the stage writes or updates. Work on the stage's stream may write it. If the stage
    /// writes the buffer, its contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::View`](crate::ErrorKind) if it declared something else.
    pub fn write<T>(&self, buffer: Buffer<T>) -> Result<DeviceRange, Error> {
        let range = self.find(buffer.id, Access::writes);
        let name = || self.definition.buffer_name(buffer.id);
        range.ok_or_else(|| Error::not_written(self.stage, &name()))
    }

    /// The address of a buffer that the stage uses.
    pub(crate) fn address(&self, id: BufferId) -> Result<u64, Error> {
        let range = self.find(id, |_| true);
        range.map(|range| range.address).ok_or_else(|| self.not_read(id))
    }

    fn find(&self, id: BufferId, allows: fn(Access) -> bool) -> Option<DeviceRange> {
        let is = |(index, access, _): &&(usize, Access, DeviceRange)| {
            *index == id.index && id.pipeline == self.definition.id && allows(*access)
        };
        self.views.iter().find(is).map(|(_, _, range)| *range)
    }

    fn not_read(&self, id: BufferId) -> Error {
        Error::not_read(self.stage, &self.definition.buffer_name(id))
    }
}
