//! The caller's memory of a pipeline on the host, and what of it a stage sees.

use core::mem::take;

use bytemuck::{AnyBitPattern, NoUninit, try_cast_slice, try_cast_slice_mut};

use crate::pipeline::buffer::{Access, Buffer, BufferId, Extent};
use crate::pipeline::definition::Definition;
use crate::pipeline::error::{MemoryError, ViewError};
use crate::pipeline::memory::Given;
use crate::plan::chunks::Chunk;

/// The memory of a pipeline's inputs, outputs, in-place buffers and accumulators, for one run.
#[derive(Debug, Default)]
#[must_use]
pub struct HostMemory<'m> {
    given: Vec<(BufferId, Bytes<'m>)>,
}

impl<'m> HostMemory<'m> {
    /// No memory yet.
    pub const fn new() -> Self {
        Self { given: Vec::new() }
    }

    /// The memory of an input.
    pub fn read<T: NoUninit>(mut self, buffer: Buffer<T>, memory: &'m [T]) -> Self {
        self.given.push((buffer.id, Bytes::Read(bytemuck::cast_slice(memory))));
        self
    }

    /// The memory of an output, an in-place buffer or an accumulator.
    pub fn write<T>(mut self, buffer: Buffer<T>, memory: &'m mut [T]) -> Self
    where
        T: NoUninit + AnyBitPattern,
    {
        self.given.push((buffer.id, Bytes::Write(bytemuck::cast_slice_mut(memory))));
        self
    }

    /// The memory of each buffer by index, `None` for scratch, if every other one has what it needs.
    pub(crate) fn check(
        self,
        definition: &Definition,
    ) -> Result<Vec<Option<Bytes<'m>>>, MemoryError> {
        let given = |(id, bytes): &(BufferId, Bytes<'_>)| Given {
            id: *id,
            bytes: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            writable: matches!(bytes, Bytes::Write(_)),
            // All memory is.
            on_host: definition.buffers.get(id.index).is_some_and(|spec| spec.on_host),
        };
        let places = definition.check_memory(&self.given.iter().map(given).collect::<Vec<_>>())?;
        let mut given: Vec<_> = self.given.into_iter().map(|(_, bytes)| Some(bytes)).collect();
        Ok(places.into_iter().map(|place| given.get_mut(place?)?.take()).collect())
    }
}

/// Memory that is read, or written.
#[derive(Debug)]
pub(crate) enum Bytes<'m> {
    Read(&'m [u8]),
    Write(&'m mut [u8]),
}

impl Bytes<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Read(bytes) => bytes.len(),
            Self::Write(bytes) => bytes.len(),
        }
    }

    /// The parts of this buffer that each of consecutive chunks sees; writable memory that they share only
    /// the first of them.
    pub(crate) fn split(&mut self, extent: Extent, chunks: &[Chunk]) -> Vec<Option<Bytes<'_>>> {
        let place = |items: u64| usize::try_from(extent.bytes(items)).unwrap_or(usize::MAX);
        let first = chunks.first().map_or(0, |chunk| chunk.start);
        match (self, extent) {
            (Self::Read(all), Extent::Fixed(_)) => {
                chunks.iter().map(|_| Some(Bytes::Read(all))).collect()
            }
            (Self::Read(all), Extent::PerItem(_)) => {
                let part = |chunk: &Chunk| all.get(place(chunk.start)..place(chunk.end()));
                chunks.iter().map(|chunk| part(chunk).map(Bytes::Read)).collect()
            }
            (Self::Write(all), Extent::Fixed(_)) => {
                let mut all = Some(&mut **all);
                chunks.iter().map(|_| all.take().map(Bytes::Write)).collect()
            }
            (Self::Write(all), Extent::PerItem(_)) => {
                let mut rest = all.get_mut(place(first)..).unwrap_or_default();
                let part = |chunk: &Chunk| {
                    let (part, after) = take(&mut rest).split_at_mut_checked(place(chunk.items))?;
                    rest = after;
                    Some(Bytes::Write(part))
                };
                chunks.iter().map(part).collect()
            }
        }
    }
}

/// What a stage sees of the buffers that it declared: per item those of its chunk's items, else all.
#[derive(Debug)]
pub struct Views<'v> {
    definition: &'v Definition,
    stage: &'v str,
    views: Vec<(usize, Option<Bytes<'v>>)>,
}

impl<'v> Views<'v> {
    /// The views of the stage at `index`, out of the caller's memory and scratch.
    pub(crate) fn new(
        definition: &'v Definition,
        index: usize,
        callers: &'v mut [Option<Bytes<'_>>],
        scratch: Vec<(usize, &'v mut [u8])>,
    ) -> Self {
        let (mut callers, mut before) = (callers, 0);
        let mut views: Vec<_> = scratch
            .into_iter()
            .map(|(buffer, bytes)| (buffer, Some(Bytes::Write(bytes))))
            .collect();
        let stage = definition.stages.get(index);
        for &(buffer, access) in stage.iter().flat_map(|stage| &stage.uses) {
            // In the order of the buffers, so that what is left begins after the one before.
            let rest = take(&mut callers).split_at_mut_checked(buffer - before + 1);
            let Some((passed, rest)) = rest else { break };
            (callers, before) = (rest, buffer + 1);
            match passed.last_mut() {
                Some(Some(Bytes::Read(bytes))) => views.push((buffer, Some(Bytes::Read(bytes)))),
                Some(Some(Bytes::Write(bytes))) => views.push((buffer, Some(Bytes::Write(bytes)))),
                _ => {}
            }
            // Who only reads gets a view that can be read more than once.
            if access == Access::Read
                && let Some((_, view)) = views.iter_mut().find(|(other, _)| *other == buffer)
                && let Some(Bytes::Write(bytes)) =
                    view.take_if(|view| matches!(view, Bytes::Write(_)))
            {
                *view = Some(Bytes::Read(bytes));
            }
        }
        let stage = stage.map_or("", |stage| &stage.name);
        Self { definition, stage, views }
    }

    /// A buffer that the stage reads.
    ///
    /// # Errors
    ///
    /// [`ViewError`] if it declared something else.
    pub fn read<T: AnyBitPattern>(&self, buffer: Buffer<T>) -> Result<&'v [T], ViewError> {
        let view = self.views.iter().find(|(index, _)| self.is(buffer, *index));
        match view {
            Some((_, Some(Bytes::Read(bytes)))) => try_cast_slice(bytes).ok(),
            _ => None,
        }
        .ok_or_else(|| ViewError::NotRead {
            stage: self.stage.into(),
            buffer: self.definition.buffer_name(buffer.id),
        })
    }

    /// A buffer that the stage writes or updates; each only once.
    ///
    /// Of a buffer that the stage writes the contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`ViewError`] if it declared something else, or has the view already.
    pub fn write<T>(&mut self, buffer: Buffer<T>) -> Result<&'v mut [T], ViewError>
    where
        T: NoUninit + AnyBitPattern,
    {
        let place = self.views.iter().position(|(index, _)| self.is(buffer, *index));
        let view = place.and_then(|place| self.views.get_mut(place));
        let taken = view.and_then(|(_, view)| view.take_if(|view| matches!(view, Bytes::Write(_))));
        match taken {
            Some(Bytes::Write(bytes)) => try_cast_slice_mut(bytes).ok(),
            _ => None,
        }
        .ok_or_else(|| ViewError::NotWritten {
            stage: self.stage.into(),
            buffer: self.definition.buffer_name(buffer.id),
        })
    }

    fn is<T>(&self, buffer: Buffer<T>, index: usize) -> bool {
        buffer.id == BufferId { pipeline: self.definition.id, index }
    }
}
