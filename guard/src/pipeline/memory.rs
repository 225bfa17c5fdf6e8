//! Checks the caller's memory against the buffers of a pipeline.

use crate::pipeline::buffer::{BufferId, Role};
use crate::pipeline::definition::{Definition, OTHER_PIPELINE};
use crate::pipeline::error::MemoryError;

/// Memory that the caller gave for a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) id: BufferId,
    pub(crate) bytes: u64,
    /// Whether stages may write it.
    pub(crate) writable: bool,
    /// Whether it is pinned host memory.
    pub(crate) on_host: bool,
}

impl Definition {
    /// Checks that every buffer except scratch has the memory that it needs. Returns the index in `given`
    /// of each buffer's memory, `None` for scratch.
    pub(crate) fn check_memory(&self, given: &[Given]) -> Result<Vec<Option<usize>>, MemoryError> {
        let mut places = vec![None; self.buffers.len()];
        for (index, memory) in given.iter().enumerate() {
            let of_pipeline = memory.id.pipeline == self.id;
            let (true, Some(place)) = (of_pipeline, places.get_mut(memory.id.index)) else {
                return Err(MemoryError::OtherPipeline);
            };
            self.check_given(memory)?;
            if place.replace(index).is_some() {
                return Err(MemoryError::Twice(self.buffer_name(memory.id)));
            }
        }
        for (spec, place) in self.buffers.iter().zip(&places) {
            if place.is_none() && spec.role != Role::Scratch {
                return Err(MemoryError::Missing(spec.name.clone()));
            }
        }
        Ok(places)
    }

    /// The name of a buffer, for messages.
    pub(crate) fn buffer_name(&self, id: BufferId) -> String {
        let of_pipeline = id.pipeline == self.id;
        let spec = self.buffers.get(id.index).filter(|_| of_pipeline);
        spec.map_or_else(|| OTHER_PIPELINE.to_owned(), |spec| spec.name.clone())
    }

    fn check_given(&self, memory: &Given) -> Result<(), MemoryError> {
        let Some(spec) = self.buffers.get(memory.id.index) else { return Ok(()) };
        let buffer = || spec.name.clone();
        let kind = |writable, on_host| match (writable, on_host) {
            (false, false) => "memory to read",
            (true, false) => "memory to write",
            (false, true) => "pinned host memory to read",
            (true, true) => "pinned host memory to write",
        };
        let given = kind(memory.writable, memory.on_host);
        let expected = match spec.role {
            Role::Input => kind(false, spec.on_host),
            Role::Output | Role::InPlace | Role::Accumulator => kind(true, spec.on_host),
            Role::Scratch => "none, since it is scratch",
        };
        if given != expected {
            return Err(MemoryError::WrongKind { buffer: buffer(), expected, given });
        }
        let (needed, given) = (spec.extent.bytes(self.items), memory.bytes);
        if needed != given.into() {
            return Err(MemoryError::WrongLength { buffer: buffer(), needed, given });
        }
        Ok(())
    }
}
