//! Arguments of cudarc's launch builder that follow the chunk.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::rc::Rc;

use cudarc::driver::{DeviceRepr, SyncOnDrop};

use crate::cuda::arguments::memory::{Memory, MemoryMut};
use crate::cuda::arguments::uses::Uses;
use crate::plan::slot::Slot;

/// An argument whose value follows the chunk.
#[derive(Debug)]
pub(crate) struct ChunkArg<'a> {
    /// Its place among the arguments.
    pub(crate) index: usize,
    pub(crate) slot: Slot<'static>,
    pub(crate) value: Rc<ChunkValue>,
    /// The memory that it points to, if any.
    pub(crate) memory: Option<Tracked<'a>>,
}

/// Borrowed memory that launches use. Nothing is dropped with it: as with cudarc's builder, an argument
/// may be declared after the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracked<'a> {
    memory: NonNull<()>,
    /// Has the launches wait for earlier uses of the memory, and holds what records theirs.
    use_in: unsafe fn(NonNull<()>, &mut Uses<'a>),
}

impl<'a> Tracked<'a> {
    pub(crate) fn read<T, S: Memory<T>>(memory: &'a S) -> Self {
        let use_in = |memory: NonNull<()>, uses: &mut Uses<'a>| {
            // SAFETY: `memory` below, borrowed for 'a.
            uses.read::<T, S>(unsafe { memory.cast::<S>().as_ref() });
        };
        Self { memory: NonNull::from(memory).cast(), use_in }
    }

    pub(crate) fn written<T, S: MemoryMut<T>>(memory: &'a mut S) -> Self {
        let use_in = |memory: NonNull<()>, uses: &mut Uses<'a>| {
            // SAFETY: `memory` below, mutably borrowed for 'a; the uses of one launch are dropped
            // before the next.
            uses.write::<T, S>(unsafe { memory.cast::<S>().as_mut() });
        };
        Self { memory: NonNull::from(memory).cast(), use_in }
    }

    /// Has the launches of `uses` wait for earlier uses, and holds what records theirs.
    pub(crate) fn use_in(self, uses: &mut Uses<'a>) {
        // SAFETY: made together with the memory.
        unsafe { (self.use_in)(self.memory, uses) }
    }
}

/// Drops what would record a use: before the launch there is none.
pub(crate) fn discard(mut used: SyncOnDrop<'_>) {
    if let SyncOnDrop::Record(recorded) = &mut used {
        *recorded = None;
    }
}

/// The value of an argument for the next launch. cudarc keeps its address, where the driver reads as
/// many of its low bytes as the parameter has.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct ChunkValue(AtomicU64);

impl ChunkValue {
    pub(crate) fn set(&self, bits: u64) {
        self.0.store(bits, Ordering::Relaxed);
    }
}

// SAFETY: eight bytes without padding; which of them a parameter reads is checked before a launch.
unsafe impl DeviceRepr for ChunkValue {}
