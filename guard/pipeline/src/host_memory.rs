//! The caller's memory of a pipeline on the host, and the views of a stage.

use core::mem::take;

use bytemuck::{AnyBitPattern, NoUninit, try_cast_slice, try_cast_slice_mut};

use crate::buffer::{Access, Buffer, BufferId, Extent};
use crate::definition::Definition;
use crate::error::{Error, StageResult};
use crate::memory::BoundMemory;
use crate::progress::Monitor;
use gridguard::Chunk;

/// The memory of one run of a pipeline on the host: for [`Pipeline::run`](crate::Pipeline::run).
#[derive(Debug, Default)]
#[must_use]
pub struct HostMemory<'m> {
    bound: Vec<(BufferId, Bytes<'m>)>,
    monitor: Option<&'m mut dyn Monitor>,
}

impl<'m> HostMemory<'m> {
    /// No memory yet.
    pub const fn new() -> Self {
        Self { bound: Vec::new(), monitor: None }
    }

    /// Lets `monitor` watch the run.
    pub fn monitor(self, monitor: &'m mut dyn Monitor) -> Self {
        Self { monitor: Some(monitor), ..self }
    }

    /// The memory of an input.
    pub fn read<T: NoUninit>(mut self, buffer: Buffer<T>, memory: &'m [T]) -> Self {
        self.bound.push((buffer.id, Bytes::Read(bytemuck::cast_slice(memory))));
        self
    }

    /// The memory of an output, an in-place buffer or an accumulator.
    pub fn write<T>(mut self, buffer: Buffer<T>, memory: &'m mut [T]) -> Self
    where
        T: NoUninit + AnyBitPattern,
    {
        self.bound.push((buffer.id, Bytes::Write(bytemuck::cast_slice_mut(memory))));
        self
    }

    /// Checks that every buffer except scratch has the memory that it needs. Returns the memory by buffer,
    /// `None` for scratch, and the monitor.
    #[allow(clippy::type_complexity, reason = "used once")]
    pub(crate) fn check(
        self,
        definition: &Definition,
    ) -> Result<(Vec<Option<Bytes<'m>>>, Option<&'m mut dyn Monitor>), Error> {
        let bound = self.bound.into_iter().map(|(id, memory)| {
            let (writable, bytes) = match &memory {
                Bytes::Read(bytes) => (false, bytes.len()),
                Bytes::Write(bytes) => (true, bytes.len()),
            };
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            // On the host, every buffer is in host memory.
            let on_host = definition.spec(id).is_some_and(|spec| spec.on_host);
            (BoundMemory { id, bytes, writable, on_host }, memory)
        });
        Ok((definition.check_memory(bound)?, self.monitor))
    }
}

/// Memory to read or to write.
#[derive(Debug)]
pub(crate) enum Bytes<'m> {
    Read(&'m [u8]),
    Write(&'m mut [u8]),
}

impl Bytes<'_> {
    /// The part of this buffer for each of consecutive chunks. If chunks share writable memory, the first chunk
    /// gets everything and the others nothing.
    pub(crate) fn split(&mut self, extent: Extent, chunks: &[Chunk]) -> Vec<Option<Bytes<'_>>> {
        let bytes = |bytes: u128| usize::try_from(bytes).unwrap_or(usize::MAX);
        let start = |chunk: &Chunk| bytes(u128::from(extent.per_item()) * u128::from(chunk.start));
        let len = |chunk: &Chunk| bytes(extent.bytes(chunk.items));
        match self {
            Self::Read(all) => {
                let part = |chunk: &Chunk| all.get(start(chunk)..)?.get(..len(chunk));
                chunks.iter().map(|chunk| part(chunk).map(Bytes::Read)).collect()
            }
            Self::Write(all) => {
                let mut rest = all.get_mut(chunks.first().map_or(0, start)..).unwrap_or_default();
                let part = |chunk: &Chunk| {
                    let (part, after) = take(&mut rest).split_at_mut_checked(len(chunk))?;
                    rest = after;
                    Some(Bytes::Write(part))
                };
                chunks.iter().map(part).collect()
            }
        }
    }
}

/// The work of a stage on the host.
pub(crate) type HostCall<'a> = dyn Fn(&Chunk, &mut Views<'_>) -> StageResult + Send + Sync + 'a;

/// The buffers that a stage on the host declared: of a buffer per item, the elements of the chunk's items.
#[derive(Debug)]
pub struct Views<'v> {
    definition: &'v Definition,
    stage: &'v str,
    views: Vec<(usize, Option<Bytes<'v>>)>,
}

impl<'v> Views<'v> {
    /// The views of the stage at `index`, of the caller's memory and scratch.
    pub(crate) fn new(
        definition: &'v Definition,
        index: usize,
        callers: &'v mut [Option<Bytes<'_>>],
        scratch: Vec<(usize, &'v mut [u8])>,
    ) -> Self {
        let stage = definition.stages.get(index);
        let uses = stage.map_or(&[][..], |stage| &stage.uses);
        let scratch = scratch.into_iter().map(|(buffer, bytes)| (buffer, Bytes::Write(bytes)));
        let callers = callers.iter_mut().enumerate().filter_map(|(buffer, bytes)| {
            let bytes = match bytes.as_mut()? {
                Bytes::Read(bytes) => Bytes::Read(bytes),
                Bytes::Write(bytes) => Bytes::Write(bytes),
            };
            Some((buffer, bytes))
        });
        let view = |(buffer, bytes)| {
            // Uses are sorted by buffer.
            let place = uses.binary_search_by_key(&buffer, |(buffer, _)| *buffer).ok()?;
            let view = match (bytes, uses.get(place)?.1) {
                // A stage that only reads may take its view more than once.
                (Bytes::Write(bytes), Access::Read) => Bytes::Read(bytes),
                (bytes, _) => bytes,
            };
            Some((buffer, Some(view)))
        };
        let views = scratch.chain(callers).filter_map(view).collect();
        Self { definition, stage: stage.map_or("", |stage| &stage.name), views }
    }

    /// A buffer that the stage reads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::View`](crate::ErrorKind) if it declared something else.
    pub fn read<T: AnyBitPattern>(&self, buffer: Buffer<T>) -> Result<&'v [T], Error> {
        let view = self.views.iter().find(|(index, _)| self.is(buffer, *index));
        match view {
            Some((_, Some(Bytes::Read(bytes)))) => try_cast_slice(bytes).ok(),
            _ => None,
        }
        .ok_or_else(|| Error::not_read(self.stage, &self.definition.buffer_name(buffer.id)))
    }

    /// A buffer that the stage writes or updates. Its view can be taken once. If the stage writes the
    /// buffer, the contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::View`](crate::ErrorKind) if it declared something else, or has taken the view already.
    pub fn write<T>(&mut self, buffer: Buffer<T>) -> Result<&'v mut [T], Error>
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
        .ok_or_else(|| Error::not_written(self.stage, &self.definition.buffer_name(buffer.id)))
    }

    fn is<T>(&self, buffer: Buffer<T>, index: usize) -> bool {
        buffer.id == BufferId { pipeline: self.definition.id, index }
    }
}
