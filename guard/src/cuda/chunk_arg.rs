//! Arguments of cudarc's launch builder that follow the chunk.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::rc::Rc;

use cudarc::driver::{CudaStream, DeviceRepr, SyncOnDrop};

use super::arguments::{Memory, MemoryMut};
use crate::plan::slot::Slot;

/// An argument whose value follows the chunk.
#[derive(Debug)]
pub(super) struct ChunkArg<'a> {
    /// Its place among the arguments.
    pub(super) index: usize,
    pub(super) slot: Slot<'static>,
    pub(super) value: Rc<ChunkValue>,
    /// The memory that it points to, if any.
    pub(super) memory: Option<Tracked<'a>>,
}

/// Borrowed memory whose uses cudarc tracks. Nothing is dropped with it: as with cudarc's builder, an
/// argument may be declared after the builder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tracked<'a> {
    memory: NonNull<()>,
    /// Has the stream wait for earlier uses of the memory, and records this one when the result is
    /// dropped.
    use_on: unsafe fn(NonNull<()>, &'a CudaStream) -> SyncOnDrop<'a>,
}

impl<'a> Tracked<'a> {
    pub(super) fn read<T, S: Memory<T>>(memory: &'a S) -> Self {
        let use_on = |memory: NonNull<()>, stream: &'a CudaStream| {
            // SAFETY: `memory` below, borrowed for 'a.
            unsafe { memory.cast::<S>().as_ref() }.device_ptr(stream).1
        };
        Self { memory: NonNull::from(memory).cast(), use_on }
    }

    pub(super) fn written<T, S: MemoryMut<T>>(memory: &'a mut S) -> Self {
        let use_on = |memory: NonNull<()>, stream: &'a CudaStream| {
            // SAFETY: `memory` below, mutably borrowed for 'a; the result of one launch is dropped
            // before the next.
            unsafe { memory.cast::<S>().as_mut() }.device_ptr_mut(stream).1
        };
        Self { memory: NonNull::from(memory).cast(), use_on }
    }

    /// Has `stream` wait for earlier uses; what is returned records this one.
    pub(super) fn use_on(self, stream: &'a CudaStream) -> SyncOnDrop<'a> {
        // SAFETY: made together with the memory.
        unsafe { (self.use_on)(self.memory, stream) }
    }
}

/// The value of an argument for the next launch. cudarc keeps its address, where the driver reads as
/// many of its low bytes as the parameter has.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct ChunkValue(AtomicU64);

impl ChunkValue {
    pub(super) fn set(&self, bits: u64) {
        self.0.store(bits, Ordering::Relaxed);
    }
}

// SAFETY: eight bytes without padding; which of them a parameter reads is checked before a launch.
unsafe impl DeviceRepr for ChunkValue {}
