//! Checks the caller's memory against the buffers of a pipeline.

use crate::buffer::{BufferId, BufferSpec, Role};
use crate::definition::Definition;
use crate::error::Error;
use gridguard::count;

/// Memory that the caller bound to a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundMemory {
    pub(crate) id: BufferId,
    pub(crate) bytes: u64,
    /// Whether stages may write it.
    pub(crate) writable: bool,
    /// Whether it is pinned host memory.
    pub(crate) on_host: bool,
}

impl Definition {
    /// Checks that every buffer except scratch has the memory that it needs. Returns the memory by buffer,
    /// `None` for scratch.
    pub(crate) fn check_memory<M>(
        &self,
        bound: impl Iterator<Item = (BoundMemory, M)>,
    ) -> Result<Vec<Option<M>>, Error> {
        let mut by_buffer: Vec<Option<M>> = self.buffers.iter().map(|_| None).collect();
        for (bound, memory) in bound {
            let (Some(spec), Some(slot)) = (self.spec(bound.id), by_buffer.get_mut(bound.id.index))
            else {
                return Err(Error::memory("memory was given for a buffer of another pipeline"));
            };
            self.check_bound(spec, &bound)?;
            if slot.replace(memory).is_some() {
                return Err(Error::memory(format!("buffer {} has memory twice", spec.name)));
            }
        }
        for (spec, memory) in self.buffers.iter().zip(&by_buffer) {
            if memory.is_none() && spec.role != Role::Scratch {
                return Err(Error::memory(format!("buffer {} has no memory", spec.name)));
            }
        }
        Ok(by_buffer)
    }

    fn check_bound(&self, spec: &BufferSpec, memory: &BoundMemory) -> Result<(), Error> {
        let buffer = &spec.name;
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
            let wrong = format!("buffer {buffer} takes {expected}, not {given}");
            return Err(Error::memory(wrong));
        }
        let (needed, given) = (spec.extent.bytes(self.items), memory.bytes);
        if needed != given.into() {
            let wrong = format!(
                "buffer {buffer} has {}, the items of the pipeline need {needed}",
                count(given, "byte")
            );
            return Err(Error::memory(wrong));
        }
        Ok(())
    }
}
