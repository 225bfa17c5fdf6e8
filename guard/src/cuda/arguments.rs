//! Kernel arguments from cudarc's slices and views, and their form for the driver.

use core::ffi::c_void;
use core::marker::PhantomData;
use std::sync::Arc;

use arrayvec::ArrayVec;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, HostSlice,
    MappedBuffer, PinnedHostSlice, SyncOnDrop, UnifiedSlice, UnifiedView, UnifiedViewMut,
};

use super::uses::Uses;
use crate::plan::arguments::{ArgsError, KernelArgs, MAX_ARGS};
use crate::plan::chunks::Chunk;
use crate::plan::slot::{Scalar, Slot};

/// The arguments of one plan on one stream, in the order of the kernel's parameters.
///
/// The launches wait for earlier work on memory that they use, and later work on it waits for them:
/// through cudarc's events as far as cudarc tracks the memory, and else through its stream, which also
/// frees it. A launch whose items reach past the end of a slice is rejected.
///
/// The uses are recorded when the launch that takes this returns. It stays on its thread, since the
/// handle of a per-thread stream means another stream on another thread.
#[derive(Debug)]
pub struct Args<'a> {
    stream: &'a CudaStream,
    values: KernelArgs<'a>,
    /// The stream again, if the launch allocates its workspace on it.
    workspace_stream: Option<&'a Arc<CudaStream>>,
    uses: Uses<'a>,
    /// Makes this type neither `Send` nor `Sync`.
    this_thread: PhantomData<*mut ()>,
}

impl<'a> Args<'a> {
    /// No arguments yet, for launches on `stream`.
    #[must_use]
    #[inline]
    pub fn new(stream: &'a CudaStream) -> Self {
        let (values, uses) = (KernelArgs::new(), Uses::new(stream));
        Self { stream, values, workspace_stream: None, uses, this_thread: PhantomData }
    }

    /// As [`Self::new`], for a launch that allocates its workspace on `stream`.
    #[must_use]
    pub fn with_workspace(stream: &'a Arc<CudaStream>) -> Self {
        Self { workspace_stream: Some(stream), ..Self::new(stream) }
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
        let reach = wide(memory.num_bytes());
        let address = self.uses.read(memory);
        let (stride, span) = (bytes_of::<T>(stride), bytes_of::<T>(span));
        self.values.strided_items_within(address, stride, span, reach);
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
        let reach = wide(memory.num_bytes());
        let address = self.uses.write(memory);
        let (stride, span) = (bytes_of::<T>(stride), bytes_of::<T>(span));
        self.values.strided_items_within(address, stride, span, reach);
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

    /// The address of the launch's workspace, for each chunk at least as many bytes as the batch
    /// declares for its items. Only for
    /// [`Guard::launch_with_workspace`](crate::Guard::launch_with_workspace).
    pub fn workspace(&mut self) -> &mut Self {
        self.values.workspace();
        self
    }

    /// Memory at `address`, of which no use is recorded.
    pub(super) fn address(&mut self, address: u64) {
        self.values.address(address);
    }

    pub(super) const fn stream(&self) -> &'a CudaStream {
        self.stream
    }

    pub(super) const fn values(&self) -> &KernelArgs<'a> {
        &self.values
    }

    /// The stream on which to allocate the workspace that an argument is for.
    pub(super) fn workspace_stream(&self) -> Result<&'a Arc<CudaStream>, ArgsError> {
        let place = self.values.workspace_place().ok_or(ArgsError::WorkspaceUnused)?;
        self.workspace_stream.ok_or(ArgsError::WorkspaceNotAllocated { index: place })
    }

    pub(super) const fn uses(&self) -> &Uses<'a> {
        &self.uses
    }
}

impl<'a> Uses<'a> {
    /// The address of memory that the launches read.
    #[inline]
    pub(super) fn read<T, S: Memory<T> + ?Sized>(&mut self, memory: &'a S) -> u64 {
        let owner = memory.stream();
        let waits = memory.has_one_event() || owner.context().is_managing_stream_synchronization();
        let is_elsewhere = self.order_unless(memory.is_in_order(), owner);
        let (address, used) = memory.device_ptr(self.launches());
        if waits {
            self.check_wait();
        }
        // cudarc keeps only the last of all reads, so that one on the launches' stream would hide those
        // of other streams from a later writer. The owner's work comes after all of them.
        let last: &'a CudaStream = if is_elsewhere { owner } else { self.launches() };
        self.hold(used, last, memory.has_one_event());
        address
    }

    /// The address of memory that the launches write.
    #[inline]
    pub(super) fn write<T, S: MemoryMut<T> + ?Sized>(&mut self, memory: &'a mut S) -> u64 {
        let (owner, has_one_event) = (memory.stream(), memory.has_one_event());
        let waits = has_one_event || owner.context().is_managing_stream_synchronization();
        self.order_unless(memory.is_in_order(), owner);
        let (address, used) = memory.device_ptr_mut(self.launches());
        if waits {
            self.check_wait();
        }
        self.hold(used, self.launches(), has_one_event);
        address
    }
}

/// Device memory whose other work comes before and after the launches anyway.
///
/// A launch on cudarc's per-thread stream waits for the whole context before and for itself after, where its
/// memory is of that stream too and cudarc tracks nothing: the stream's handle does not say on which thread
/// the memory was used. Frameworks that submit all work of a thread to this stream, such as candle, need no
/// such waits.
///
/// ```no_run
/// use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
/// use gridguard::cuda::{Args, InOrder};
///
/// fn arguments<'a>(
///     stream: &'a CudaStream,
///     x: &'a InOrder<CudaSlice<f32>>,
/// ) -> Args<'a> {
///     let mut args = Args::new(stream);
///     args.read_items(x, 1024).length();
///     args
/// }
///
/// let stream = CudaContext::new(0)?.per_thread_stream();
/// // SAFETY: this thread alone uses the memory, on this stream.
/// let x = unsafe { InOrder::new(stream.alloc_zeros(1 << 20)?) };
/// let args = arguments(&stream, &x);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct InOrder<S>(S);

impl<S> InOrder<S> {
    /// `memory`, a slice or a view of cudarc.
    ///
    /// # Safety
    ///
    /// Work on the memory that is submitted before a launch with it, and conflicts with it, comes before that
    /// launch; what is submitted later, freeing the memory included, comes after.
    pub const unsafe fn new(memory: S) -> Self {
        Self(memory)
    }

    /// The memory again.
    pub fn into_inner(self) -> S {
        self.0
    }
}

impl<T, S: DeviceSlice<T>> DeviceSlice<T> for InOrder<S> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.0.stream()
    }
}

impl<T, S: DevicePtr<T>> DevicePtr<T> for InOrder<S> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.0.device_ptr(stream)
    }
}

impl<T, S: DevicePtrMut<T>> DevicePtrMut<T> for InOrder<S> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.0.device_ptr_mut(stream)
    }
}

impl<T, S: Sealed<T>> Sealed<T> for InOrder<S> {
    fn has_one_event(&self) -> bool {
        self.0.has_one_event()
    }

    fn is_in_order(&self) -> bool {
        true
    }
}

/// Pinned host memory, for copies.
impl<'a> Args<'a> {
    pub(super) fn read_host<T>(&mut self, memory: &'a PinnedHostSlice<T>) {
        let mut address = 0;
        if self.uses.is_own(memory.context()) {
            // SAFETY: only the address is taken, for work on this stream.
            let (memory, used) = unsafe { memory.stream_synced_slice(self.stream) };
            address = memory.as_ptr().expose_provenance();
            self.hold_host(used);
        }
        self.values.address(wide(address));
    }

    pub(super) fn write_host<T>(&mut self, memory: &'a mut PinnedHostSlice<T>) {
        let mut address = 0;
        if self.uses.is_own(memory.context()) {
            // SAFETY: as above.
            let (memory, used) = unsafe { memory.stream_synced_mut_slice(self.stream) };
            address = memory.as_mut_ptr().expose_provenance();
            self.hold_host(used);
        }
        self.values.address(wide(address));
    }

    /// The one event of pinned memory, which cudarc has the stream wait for, and waits for itself before
    /// it gives or frees the memory.
    fn hold_host(&mut self, used: SyncOnDrop<'a>) {
        self.uses.check_wait();
        self.uses.hold(used, self.stream, true);
    }
}

/// Device memory of elements `T` that a kernel may read: the slices and views of cudarc.
///
/// No other type implements it, and these only for their own elements: a launch relies on the address,
/// the size and the context that are reported, and on the use being recorded.
#[allow(private_bounds, reason = "only cudarc's types implement it")]
pub trait Memory<T>: DevicePtr<T> + Sealed<T> {}

impl<T, S: DevicePtr<T> + Sealed<T>> Memory<T> for S {}

/// As [`Memory`], that a kernel may also write.
#[allow(private_bounds, reason = "only cudarc's types implement it")]
pub trait MemoryMut<T>: DevicePtrMut<T> + Sealed<T> {}

impl<T, S: DevicePtrMut<T> + Sealed<T>> MemoryMut<T> for S {}

/// Names the element type, since anyone may implement cudarc's traits for its types and elements of
/// their own.
trait Sealed<T> {
    /// Whether one event stands for reads and writes, and is waited for whether cudarc tracks the
    /// memory or not.
    fn has_one_event(&self) -> bool {
        true
    }

    /// Whether its uses need no order beyond cudarc's.
    fn is_in_order(&self) -> bool {
        false
    }
}

impl<T> Sealed<T> for CudaSlice<T> {
    fn has_one_event(&self) -> bool {
        false
    }
}

impl<T> Sealed<T> for CudaView<'_, T> {
    fn has_one_event(&self) -> bool {
        false
    }
}

impl<T> Sealed<T> for CudaViewMut<'_, T> {
    fn has_one_event(&self) -> bool {
        false
    }
}

impl<T> Sealed<T> for UnifiedSlice<T> {}
impl<T> Sealed<T> for UnifiedView<'_, T> {}
impl<T> Sealed<T> for UnifiedViewMut<'_, T> {}
impl Sealed<u8> for MappedBuffer {}

/// Argument values, and pointers to them, as `cuLaunchKernel` takes them.
pub(super) struct Packed {
    values: ArrayVec<u64, MAX_ARGS>,
    /// One more, for the parameter that a rewritten kernel has.
    pointers: ArrayVec<*mut c_void, { MAX_ARGS + 1 }>,
}

impl Packed {
    #[inline]
    pub(super) const fn new() -> Self {
        Self { values: ArrayVec::new_const(), pointers: ArrayVec::new_const() }
    }

    /// The arguments for `chunk`. The pointer is valid until the next call, and until this moves.
    #[inline]
    pub(super) fn fill(&mut self, args: &KernelArgs<'_>, chunk: &Chunk) -> *mut *mut c_void {
        self.values.clear();
        self.pointers.clear();
        // Both arrays are large enough: `KernelArgs` has at most `MAX_ARGS` slots.
        self.values.extend(args.slots().iter().map(|slot| slot.bits(chunk)));
        let values = self.values.iter_mut();
        self.pointers.extend(args.slots().iter().zip(values).map(|(slot, value)| match slot {
            // `cuLaunchKernel` takes mutable pointers, but only reads through them.
            Slot::Bytes(bytes) => bytes.as_ptr().cast_mut().cast::<c_void>(),
            _ => core::ptr::from_mut(value).cast(),
        }));
        self.pointers.as_mut_ptr()
    }

    /// As [`Self::fill`], and `words` as one more argument. They must outlive the pointer.
    #[cfg(feature = "ptx")]
    pub(super) fn fill_with(
        &mut self,
        args: &KernelArgs<'_>,
        chunk: &Chunk,
        words: &[u32],
    ) -> *mut *mut c_void {
        self.fill(args, chunk);
        self.pointers.push(words.as_ptr().cast_mut().cast());
        self.pointers.as_mut_ptr()
    }
}

pub(super) fn bytes_of<T>(elements: u64) -> u64 {
    elements.saturating_mul(wide(size_of::<T>()))
}

pub(super) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// What the driver reads through the pointers that it gets; also under Miri.
#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Chunk = Chunk { index: 1, start: 7680, items: 5 };

    /// The bytes of each parameter, read as the driver does: the pointer, then as many bytes.
    fn read(params: *mut *mut c_void, sizes: &[usize]) -> Vec<Vec<u8>> {
        let parameter = |(place, size): (usize, &usize)| {
            // SAFETY: `fill` returned as many pointers as there are sizes.
            let from = unsafe { params.add(place).read() }.cast::<u8>();
            // SAFETY: each points to as many bytes as its parameter has.
            (0..*size).map(|byte| unsafe { from.add(byte).read() }).collect()
        };
        sizes.iter().enumerate().map(parameter).collect()
    }

    fn sizes(args: &KernelArgs<'_>) -> Vec<usize> {
        args.slots().iter().map(Slot::size).collect()
    }

    #[test]
    fn the_driver_reads_every_kind_of_argument_unchanged() {
        let structure: Vec<u8> = (0..100).collect();
        let mut args = KernelArgs::new();
        args.address(0x7f00_dead_beef)
            .value(7_u8)
            .value(-2_i16)
            .value(0.125_f32)
            .value(-1.5_f64)
            .bytes(&structure)
            .bytes(&[])
            .items_at(1 << 40, 2048)
            .strided_items_within(4096, 8, 72, 1 << 20)
            .offset()
            .offset_u32()
            .length()
            .length_u32()
            .workspace();
        let args = args.with_workspace_at(0x5000);
        let expected: [&[u8]; 14] = [
            &0x7f00_dead_beef_u64.to_ne_bytes(),
            &[7],
            &(-2_i16).to_ne_bytes(),
            &0.125_f32.to_ne_bytes(),
            &(-1.5_f64).to_ne_bytes(),
            &structure,
            &[],
            &((1_u64 << 40) + 7680 * 2048).to_ne_bytes(),
            &(4096_u64 + 7680 * 8).to_ne_bytes(),
            &7680_u64.to_ne_bytes(),
            &7680_u32.to_ne_bytes(),
            &5_u64.to_ne_bytes(),
            &5_u32.to_ne_bytes(),
            &0x5000_u64.to_ne_bytes(),
        ];
        let mut packed = Packed::new();
        let params = packed.fill(&args, &CHUNK);
        assert_eq!(read(params, &sizes(&args)), expected);
    }

    #[test]
    fn arguments_are_packed_anew_for_each_chunk() {
        let mut args = KernelArgs::new();
        args.value(9_u64).items_at(1 << 32, 16).offset().length();
        let mut packed = Packed::new();
        for index in 0..3 {
            let chunk = Chunk { index, start: 100 * index, items: 7 + index };
            let params = packed.fill(&args, &chunk);
            let expected = [9, (1 << 32) + 1600 * index, 100 * index, 7 + index];
            assert_eq!(read(params, &[8; 4]), expected.map(u64::to_ne_bytes));
        }
    }

    #[test]
    fn as_many_arguments_as_fit_are_all_read() {
        let mut args = KernelArgs::new();
        for value in 0..u64::try_from(MAX_ARGS).expect("few") {
            args.value(value.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        let mut packed = Packed::new();
        let params = packed.fill(&args, &CHUNK);
        for (value, bytes) in (0..).zip(read(params, &[8; MAX_ARGS])) {
            let value: u64 = value;
            assert_eq!(bytes, value.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
        }
        assert_eq!(args.len(), MAX_ARGS);
    }

    #[test]
    fn no_arguments_are_no_pointers() {
        let (args, mut packed) = (KernelArgs::new(), Packed::new());
        let params = packed.fill(&args, &CHUNK);
        assert_eq!(read(params, &[]), [[0; 0]; 0]);
    }
}
