//! The buffers of a pipeline: handles, sizes and roles.

use core::marker::PhantomData;

use derive_more::{Debug, Display};

/// A handle of a pipeline's buffer with elements `T`, from a [`PipelineBuilder`](super::PipelineBuilder).
#[derive(Debug)]
#[debug("Buffer({})", id.index)]
pub struct Buffer<T> {
    pub(crate) id: BufferId,
    elements: PhantomData<fn() -> T>,
}

impl<T> Buffer<T> {
    pub(crate) const fn new(id: BufferId) -> Self {
        Self { id, elements: PhantomData }
    }
}

impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Buffer<T> {}

/// Identifies a buffer of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferId {
    pub(crate) pipeline: u64,
    pub(crate) index: usize,
}

/// The declaration of a buffer.
#[derive(Clone, Debug)]
pub(crate) struct BufferSpec {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) extent: Extent,
    /// The type of its elements.
    #[cfg_attr(not(feature = "profile"), allow(dead_code, reason = "only a profile's key has it"))]
    pub(crate) elements: &'static str,
    /// Whether the caller's memory is on the host. A chunk's items are then copied to scratch and back.
    pub(crate) on_host: bool,
    /// The first and the last stage that uses it.
    pub(crate) lifetime: (usize, usize),
}

impl BufferSpec {
    /// Whether stages use it in scratch.
    pub(crate) const fn in_scratch(&self) -> bool {
        self.on_host || matches!(self.role, Role::Scratch)
    }
}

/// The role of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The caller's memory, never written.
    Input,
    /// The caller's memory, written before it is read.
    Output,
    /// The caller's memory, with contents that stages may read first.
    InPlace,
    /// The caller's memory, updated by every chunk.
    Accumulator,
    /// The pipeline's memory, live between its first and its last use in a chunk.
    Scratch,
}

/// The bytes of a buffer.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Bytes for each item.
    #[display("{_0} bytes an item")]
    PerItem(u64),
    /// Bytes that are the same for every chunk.
    #[display("{_0} bytes for every chunk")]
    Fixed(u64),
}

impl Extent {
    /// Bytes that each item adds.
    pub(crate) const fn per_item(self) -> u64 {
        match self {
            Self::PerItem(bytes) => bytes,
            Self::Fixed(_) => 0,
        }
    }

    /// Bytes for `items`.
    pub(crate) fn bytes(self, items: u64) -> u128 {
        match self {
            Self::PerItem(bytes) => u128::from(bytes) * u128::from(items),
            Self::Fixed(bytes) => bytes.into(),
        }
    }
}

/// A number, as far as 64 bits go.
pub(crate) fn saturated(number: impl TryInto<u64>) -> u64 {
    number.try_into().unwrap_or(u64::MAX)
}

/// How a stage uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// Writes all of it, without reading it before.
    Write,
    Update,
}

impl Access {
    pub(crate) const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Update)
    }

    pub(crate) const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Update)
    }
}
