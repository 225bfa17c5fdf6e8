//! The work of stages on a device: arguments of kernels, calls, and the buffers that a call gets.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::buffer::{Access, Buffer, BufferId};
use crate::definition::Definition;
use crate::error::{BufferUse, StageError};
use gridguard::{Chunk, RawArgs};

/// The work of a stage that submits its own work.
pub(crate) type Call<'a> =
    dyn FnMut(&Arc<CudaStream>, &Chunk, &DeviceViews<'_>) -> Result<(), StageError> + Send + 'a;

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
    /// [`StageError::NotRead`] if it declared something else.
    pub fn read<T>(&self, buffer: Buffer<T>) -> Result<DeviceRange, StageError> {
        let range = self.find(buffer.id, Access::reads);
        range.ok_or_else(|| StageError::NotRead(self.use_of(buffer.id).into()))
    }

    /// A buffer that the stage writes or updates. Work on the stage's stream may write it. If the stage
    /// writes the buffer, its contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`StageError::NotWritten`] if it declared something else.
    pub fn write<T>(&self, buffer: Buffer<T>) -> Result<DeviceRange, StageError> {
        let range = self.find(buffer.id, Access::writes);
        range.ok_or_else(|| StageError::NotWritten(self.use_of(buffer.id).into()))
    }

    /// The address of a buffer that the stage uses.
    pub(crate) fn address(&self, id: BufferId) -> Result<u64, StageError> {
        let range = self.find(id, |_| true);
        range.map(|range| range.address).ok_or_else(|| StageError::NotRead(self.use_of(id).into()))
    }

    fn find(&self, id: BufferId, allows: fn(Access) -> bool) -> Option<DeviceRange> {
        let is = |(index, access, _): &&(usize, Access, DeviceRange)| {
            *index == id.index && id.pipeline == self.definition.id && allows(*access)
        };
        self.views.iter().find(is).map(|(_, _, range)| *range)
    }

    fn use_of(&self, id: BufferId) -> BufferUse {
        BufferUse::new(self.stage, self.definition.buffer_name(id))
    }
}
