//! Checks the caller's memory against the buffers of a pipeline.

use crate::buffer::{BufferId, BufferSpec, Role};
use crate::definition::Definition;
use crate::error::MemoryError;

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
    /// Checks that every buffer except scratch has the memory that it needs. Returns the memory by buffer,
    /// `None` for scratch.
    pub(crate) fn check_memory<M>(
        &self,
        given: impl Iterator<Item = (Given, M)>,
    ) -> Result<Vec<Option<M>>, MemoryError> {
        let mut by_buffer: Vec<Option<M>> = self.buffers.iter().map(|_| None).collect();
        for (given, memory) in given {
            let (Some(spec), Some(slot)) = (self.spec(given.id), by_buffer.get_mut(given.id.index))
            else {
                return Err(MemoryError::OtherPipeline);
            };
            self.check_given(spec, &given)?;
            if slot.replace(memory).is_some() {
                return Err(MemoryError::Twice(spec.name.clone()));
            }
        }
        for (spec, memory) in self.buffers.iter().zip(&by_buffer) {
            if memory.is_none() && spec.role != Role::Scratch {
                return Err(MemoryError::Missing(spec.name.clone()));
            }
        }
        Ok(by_buffer)
    }

    fn check_given(&self, spec: &BufferSpec, memory: &Given) -> Result<(), MemoryError> {
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
