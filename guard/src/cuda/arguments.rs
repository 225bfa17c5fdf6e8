//! Kernel arguments from cudarc's slices and views.

use std::sync::Arc;

use arrayvec::ArrayVec;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};

use crate::plan::arguments::{KernelArgs, MAX_ARGS, Scalar};

/// The arguments of one plan on one stream, in the order of the kernel's parameters.
///
/// Slices and views go through cudarc's `DevicePtr`, so that the stream waits for the writers of
/// what it reads, and later users of a slice wait for this launch. A launch whose items reach past
/// the end of a slice is rejected.
///
/// The uses of slices are recorded when this is dropped: by the launch that takes it.
#[derive(Debug)]
pub struct Args<'a> {
    stream: &'a CudaStream,
    values: KernelArgs<'a>,
    /// Whether some memory belongs to another context than the stream.
    foreign_memory: bool,
    /// The stream again, if the launch allocates its workspace on it.
    workspace_stream: Option<&'a Arc<CudaStream>>,
    /// Recorded into the slices' events once the launches are submitted.
    uses: ArrayVec<SyncOnDrop<'a>, MAX_ARGS>,
}

impl<'a> Args<'a> {
    /// No arguments yet, for launches on `stream`.
    #[must_use]
    #[inline]
    pub fn new(stream: &'a CudaStream) -> Self {
        let (values, uses) = (KernelArgs::new(), ArrayVec::new());
        Self { stream, values, foreign_memory: false, workspace_stream: None, uses }
    }

    /// Memory that the kernel reads as a whole in every chunk.
    pub fn read<T, S: DevicePtr<T>>(&mut self, memory: &'a S) -> &mut Self {
        self.check_context(memory);
        let (address, uses) = memory.device_ptr(self.stream);
        self.hold(uses);
        self.values.address(address);
        self
    }

    /// Memory that the kernel writes, or reads and writes, as a whole.
    pub fn write<T, S: DevicePtrMut<T>>(&mut self, memory: &'a mut S) -> &mut Self {
        self.check_context(memory);
        let (address, uses) = memory.device_ptr_mut(self.stream);
        self.hold(uses);
        self.values.address(address);
        self
    }

    /// Memory of `elements` elements an item that the kernel reads: each chunk gets the address of
    /// its first item.
    pub fn read_items<T, S: DevicePtr<T>>(&mut self, memory: &'a S, elements: u64) -> &mut Self {
        self.read_strided_items(memory, elements, elements)
    }

    /// As [`Self::read_items`], of items `stride` elements apart that span `span` elements each, more
    /// or less than the stride.
    pub fn read_strided_items<T, S>(&mut self, memory: &'a S, stride: u64, span: u64) -> &mut Self
    where
        S: DevicePtr<T>,
    {
        self.check_context(memory);
        let reach = reach_bytes::<T, S>(memory);
        let (address, uses) = memory.device_ptr(self.stream);
        self.hold(uses);
        let (stride, span) = (bytes_of::<T>(stride), bytes_of::<T>(span));
        self.values.strided_items_within(address, stride, span, reach);
        self
    }

    /// Memory of `elements` elements an item that the kernel writes, or reads and writes: each
    /// chunk gets the address of its first item.
    pub fn write_items<T, S>(&mut self, memory: &'a mut S, elements: u64) -> &mut Self
    where
        S: DevicePtrMut<T>,
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
        S: DevicePtrMut<T>,
    {
        self.check_context(memory);
        let reach = reach_bytes::<T, S>(memory);
        let (address, uses) = memory.device_ptr_mut(self.stream);
        self.hold(uses);
        let (stride, span) = (bytes_of::<T>(stride), bytes_of::<T>(span));
        self.values.strided_items_within(address, stride, span, reach);
        self
    }

    /// A fixed value: an integer or a float.
    pub fn value<T: Scalar>(&mut self, value: T) -> &mut Self {
        self.values.value(value);
        self
    }

    /// A fixed value of any size, in the kernel's memory layout.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> &mut Self {
        self.values.bytes(bytes);
        self
    }

    /// The chunk's first item as `u64`.
    pub fn offset(&mut self) -> &mut Self {
        self.values.offset();
        self
    }

    /// The chunk's first item as `u32`.
    pub fn offset_u32(&mut self) -> &mut Self {
        self.values.offset_u32();
        self
    }

    /// The chunk's first item as `i32`, for kernels with an `int`.
    pub fn offset_i32(&mut self) -> &mut Self {
        self.values.offset_i32();
        self
    }

    /// The chunk's number of items as `u64`.
    pub fn length(&mut self) -> &mut Self {
        self.values.length();
        self
    }

    /// The chunk's number of items as `u32`.
    pub fn length_u32(&mut self) -> &mut Self {
        self.values.length_u32();
        self
    }

    /// The chunk's number of items as `i32`, for kernels with an `int`.
    pub fn length_i32(&mut self) -> &mut Self {
        self.values.length_i32();
        self
    }

    pub(super) const fn stream(&self) -> &'a CudaStream {
        self.stream
    }

    pub(super) const fn values(&self) -> &KernelArgs<'a> {
        &self.values
    }

    pub(super) const fn values_mut(&mut self) -> &mut KernelArgs<'a> {
        &mut self.values
    }

    /// The same arguments, for a launch that allocates its workspace on `stream`, which is theirs.
    pub(super) const fn allocating_on(mut self, stream: &'a Arc<CudaStream>) -> Self {
        self.workspace_stream = Some(stream);
        self
    }

    pub(super) const fn allocates_on(&self) -> Option<&'a Arc<CudaStream>> {
        self.workspace_stream
    }

    /// Whether some memory belongs to another context than the stream.
    pub(super) const fn has_foreign_memory(&self) -> bool {
        self.foreign_memory
    }

    fn check_context<T, S: DeviceSlice<T>>(&mut self, memory: &S) {
        self.foreign_memory |= memory.stream().context() != self.stream.context();
    }

    pub(super) fn has_uses(&self) -> bool {
        !self.uses.is_empty()
    }

    fn hold(&mut self, uses: SyncOnDrop<'a>) {
        // The launch rejects more than `MAX_ARGS` arguments, so the use may end here.
        let _ = self.uses.try_push(uses);
    }
}

fn bytes_of<T>(elements: u64) -> u64 {
    elements.saturating_mul(wide(size_of::<T>()))
}

fn reach_bytes<T, S: DeviceSlice<T>>(memory: &S) -> u64 {
    wide(memory.num_bytes())
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
