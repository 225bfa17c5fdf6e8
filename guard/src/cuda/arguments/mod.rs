//! Arguments: cudarc's slices and values enter, the pointers that `cuLaunchKernel` takes and the order of memory uses
//! leave.

pub(crate) mod memory;
pub(crate) mod packed;
pub(crate) mod uses;

use core::marker::PhantomData;
use cudarc::driver::{CudaStream, HostSlice, PinnedHostSlice, SyncOnDrop};

use crate::cuda::arguments::memory::{Memory, MemoryMut, bytes_of};
use crate::cuda::arguments::uses::Uses;
use crate::cuda::launch::Contract;
use crate::dim::saturated;
use crate::plan::arguments::KernelArgs;
use crate::plan::slot::{Count, Scalar, Slot};

/// The arguments of one plan on one stream, in the order of the kernel's parameters.
///
/// The launches wait for earlier work on their memory, and later work waits for them: through cudarc's events if
/// cudarc tracks the memory, else through the stream that owns it. A launch whose items reach past the end of a
/// slice is rejected.
///
/// The uses are recorded when the launch that takes this returns. It stays on its thread, since the
/// handle of a per-thread stream means another stream on another thread.
#[derive(Debug)]
pub struct Args<'a> {
    stream: &'a CudaStream,
    values: KernelArgs<'a>,
    uses: Uses<'a>,
    /// Makes this type neither `Send` nor `Sync`.
    this_thread: PhantomData<*mut ()>,
}

impl<'a> Args<'a> {
    /// No arguments yet, for launches on `stream`.
    #[must_use]
    #[inline]
    pub fn new(stream: &'a CudaStream) -> Self {
        Self::ordered_by(stream, Contract::Declared)
    }

    /// As [`Self::new`]. The caller of an unsafe launch orders what cudarc's events do not order.
    #[inline]
    pub(crate) fn ordered_by(stream: &'a CudaStream, contract: Contract) -> Self {
        let (values, uses) = (KernelArgs::new(), Uses::new(stream, contract));
        Self { stream, values, uses, this_thread: PhantomData }
    }

    /// Memory that the kernel reads as a whole in every chunk.
    pub fn read<T, S: Memory<T> + ?Sized>(&mut self, memory: &'a S) -> &mut Self {
        let address = self.uses.read(memory);
        self.values.address(address);
        self
    }

    /// Memory that the kernel writes, or reads and writes, as a whole.
    pub fn write<T, S: MemoryMut<T> + ?Sized>(&mut self, memory: &'a mut S) -> &mut Self {
        let address = self.uses.write(memory);
        self.values.address(address);
        self
    }

    /// Memory of `elements` elements an item that the kernel reads: each chunk gets the address of
    /// its first item.
    pub fn read_items<T, S>(&mut self, memory: &'a S, elements: u64) -> &mut Self
    where
        S: Memory<T> + ?Sized,
    {
        self.read_strided_items(memory, elements, elements)
    }

    /// As [`Self::read_items`], of items `stride` elements apart that span `span` elements each, more
    /// or less than the stride.
    pub fn read_strided_items<T, S>(&mut self, memory: &'a S, stride: u64, span: u64) -> &mut Self
    where
        S: Memory<T> + ?Sized,
    {
        let reach = saturated(memory.num_bytes());
        let address = self.uses.read(memory);
        self.values.items_within(address, bytes_of::<T>(stride), bytes_of::<T>(span), reach);
        self
    }

    /// Memory of `elements` elements an item that the kernel writes, or reads and writes: each
    /// chunk gets the address of its first item.
    pub fn write_items<T, S>(&mut self, memory: &'a mut S, elements: u64) -> &mut Self
    where
        S: MemoryMut<T> + ?Sized,
    {
        self.write_strided_items(memory, elements, elements)
    }

    /// As [`Self::write_items`], of items `stride` elements apart that span `span` elements each, more
    /// or less than the stride.
    pub fn write_strided_items<T, S>(
        &mut self,
        memory: &'a mut S,
        stride: u64,
        span: u64,
    ) -> &mut Self
    where
        S: MemoryMut<T> + ?Sized,
    {
        let reach = saturated(memory.num_bytes());
        let address = self.uses.write(memory);
        self.values.items_within(address, bytes_of::<T>(stride), bytes_of::<T>(span), reach);
        self
    }

    /// A fixed value: an integer or a float. For one that may equal the number of items see
    /// [`Self::constant`].
    pub fn value<T: Scalar>(&mut self, value: T) -> &mut Self {
        self.values.value(value);
        self
    }

    /// As [`KernelArgs::constant`].
    pub fn constant<T: Scalar>(&mut self, value: T) -> &mut Self {
        self.values.constant(value);
        self
    }

    /// A fixed value of any size, in the kernel's memory layout.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> &mut Self {
        self.values.bytes(bytes);
        self
    }

    /// As [`KernelArgs::offset`].
    pub fn offset(&mut self) -> &mut Self {
        self.offset_as::<u64>()
    }

    /// As [`KernelArgs::offset_as`].
    #[allow(private_bounds, reason = "u64, u32 and i32")]
    pub fn offset_as<T: Count>(&mut self) -> &mut Self {
        self.values.offset_as::<T>();
        self
    }

    /// As [`KernelArgs::length`].
    pub fn length(&mut self) -> &mut Self {
        self.length_as::<u64>()
    }

    /// As [`KernelArgs::length_as`].
    #[allow(private_bounds, reason = "u64, u32 and i32")]
    pub fn length_as<T: Count>(&mut self) -> &mut Self {
        self.values.length_as::<T>();
        self
    }

    /// The address of a workspace, which [`Guard::plan_and_launch`](crate::Guard::plan_and_launch) allocates on
    /// the stream, not initialised, with the bytes that [`BatchAxis::workspace`](crate::BatchAxis::workspace)
    /// declares for the items of the largest chunk. All chunks share it, so they never overlap.
    ///
    /// If the allocation is out of memory, the chunks are halved, down to the smallest that the batch allows.
    /// During stream capture, within [`capture_launches`](crate::cuda::capture_launches), the allocation becomes
    /// a node of the graph: memory is reserved when the graph is instantiated or launched, which then fails if
    /// there is too little. Cap the workspace by what will be free, as
    /// [`Guard::workspace`](crate::Guard::workspace) does.
    pub fn workspace(&mut self) -> &mut Self {
        self.values.workspace();
        self
    }

    pub(crate) const fn stream(&self) -> &'a CudaStream {
        self.stream
    }

    pub(crate) const fn values(&self) -> &KernelArgs<'a> {
        &self.values
    }

    /// Adds an argument. No use of its memory is recorded.
    pub(crate) fn push(&mut self, slot: Slot<'a>) {
        self.values.push(slot);
    }

    pub(crate) const fn uses(&self) -> &Uses<'a> {
        &self.uses
    }
}

/// Pinned host memory, for copies.
impl<'a> Args<'a> {
    pub(crate) fn read_host<T>(&mut self, memory: &'a PinnedHostSlice<T>) {
        let mut address = 0;
        if self.uses.is_own(memory.context()) {
            // SAFETY: only the address is taken, for work on this stream.
            let (memory, used) = unsafe { memory.stream_synced_slice(self.stream) };
            address = memory.as_ptr().expose_provenance();
            self.hold_host(used);
        }
        self.values.address(saturated(address));
    }

    pub(crate) fn write_host<T>(&mut self, memory: &'a mut PinnedHostSlice<T>) {
        let mut address = 0;
        if self.uses.is_own(memory.context()) {
            // SAFETY: as above.
            let (memory, used) = unsafe { memory.stream_synced_mut_slice(self.stream) };
            address = memory.as_mut_ptr().expose_provenance();
            self.hold_host(used);
        }
        self.values.address(saturated(address));
    }

    /// The one event of pinned memory, which cudarc has the stream wait for, and waits for itself before
    /// it gives or frees the memory.
    fn hold_host(&mut self, used: SyncOnDrop<'a>) {
        self.uses.check_wait();
        self.uses.hold(used, self.stream, true);
    }
}
