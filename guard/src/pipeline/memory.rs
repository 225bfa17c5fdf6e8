//! Whether the caller's memory is what a pipeline's buffers need.

use crate::pipeline::buffer::{BufferId, Role};
use crate::pipeline::definition::Definition;
use crate::pipeline::error::MemoryError;

/// Memory that the caller gave for a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) id: BufferId,
    pub(crate) bytes: u64,
    /// Whether stages may write it.
    pub(crate) writable: bool,
}

impl Definition {
    /// The place in `given` of each buffer's memory, `None` for scratch, if every other buffer has what
    /// it needs.
    pub(crate) fn check_memory(&self, given: &[Given]) -> Result<Vec<Option<usize>>, MemoryError> {
        let mut places = vec![None; self.buffers.len()];
        for (index, memory) in given.iter().enumerate() {
            let of_pipeline = memory.id.pipeline == self.id;
            let (true, Some(place)) = (of_pipeline, places.get_mut(memory.id.index)) else {
                return Err(MemoryError::OtherPipeline);
            };
            self.check_given(memory)?;
            if place.replace(index).is_some() {
                return Err(MemoryError::Twice { buffer: self.buffer_name(memory.id) });
            }
        }
        for (spec, place) in self.buffers.iter().zip(&places) {
            if place.is_none() && spec.role != Role::Scratch {
                return Err(MemoryError::Missing { buffer: spec.name.clone() });
            }
        }
        Ok(places)
    }

    /// The name of a buffer, for messages.
    pub(crate) fn buffer_name(&self, id: BufferId) -> String {
        let of_pipeline = id.pipeline == self.id;
        let spec = self.buffers.get(id.index).filter(|_| of_pipeline);
        spec.map_or_else(|| "a buffer of another pipeline".to_owned(), |spec| spec.name.clone())
    }

    fn check_given(&self, memory: &Given) -> Result<(), MemoryError> {
        let Some(spec) = self.buffers.get(memory.id.index) else { return Ok(()) };
        let buffer = || spec.name.clone();
        let (to_read, to_write) = ("memory to read", "memory to write");
        let given = if memory.writable { to_write } else { to_read };
        let expected = match spec.role {
            Role::Input => to_read,
            Role::Output | Role::InPlace | Role::Accumulator => to_write,
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
