//! Arguments: cudarc's slices and values enter, the pointers that `cuLaunchKernel` takes and the order of memory uses
//! leave.

pub(crate) mod argument;
pub(crate) mod memory;
pub(crate) mod packed;
pub(crate) mod uses;

use cudarc::driver::CudaStream;

use crate::cuda::arguments::memory::{Memory, MemoryMut, bytes_of};
use crate::cuda::arguments::uses::MemoryUses;
use crate::cuda::launch::Contract;
use crate::dim::saturated;
use crate::plan::arguments::{ArgumentList, KernelArgs};
use crate::plan::slot::Slot;

/// The arguments of one plan on one stream, in the order of the kernel's parameters.
///
/// The launches wait for earlier work on their memory, and later work waits for them: through cudarc's events if
/// cudarc tracks the memory, else through the stream that owns it. A launch whose items reach past the end of a
/// slice is rejected.
///
/// The launch that takes these arguments records the uses when it returns. `Args` stay on their thread, because the
/// handle of a per-thread stream means another stream on another thread.
///
/// ```no_run
/// use cudarc::driver::CudaStream;
/// use gridguard::cuda::Args;
/// use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest, Parameter};
///
/// let guard = Guard::cuda(0)?;
/// let source = "extern \"C\" __global__ void twice(float *x) { x[blockIdx.y * 128 + threadIdx.x] *= 2; }";
/// // SAFETY: `twice` takes one pointer, to 128 elements for each block on y.
/// let twice = unsafe { guard.compile("twice.cu", source)?.kernel("twice", &[Parameter::Memory])? };
///
/// let stream = guard.context().expect("a device").default_stream();
/// let mut x = stream.alloc_zeros::<f32>(128 * 100_000)?;
/// let mut args = Args::new(&stream);
/// args.write_items(&mut x, 128);
/// let request = LaunchRequest::new(Dim3::new(1, 100_000, 1), Dim3::new(128, 1, 1));
/// let launches = guard.launch(&twice, (&request, &BatchAxis::new(Axis::Y, 100_000)), args)?;
/// assert_eq!(launches, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Args<'a> = KernelArgs<'a, MemoryUses<'a>>;

impl<'a> Args<'a> {
    /// No arguments yet, for launches on `stream`.
    #[inline]
    pub fn new(stream: &'a CudaStream) -> Self {
        Self::ordered_by(stream, Contract::Declared)
    }

    /// As [`Self::new`]. The caller of an unsafe launch orders what cudarc's events do not order.
    #[inline]
    pub(crate) fn ordered_by(stream: &'a CudaStream, contract: Contract) -> Self {
        Self { list: ArgumentList::new(), memory: MemoryUses::of_launches(stream, contract) }
    }

    /// Memory that the kernel reads as a whole in every chunk.
    pub fn read<T, S: Memory<T> + ?Sized>(&mut self, memory: &'a S) -> &mut Self {
        let address = self.memory.read(memory);
        self.push(Slot::Address(address))
    }

    /// Memory that the kernel writes, or reads and writes, as a whole.
    pub fn write<T, S: MemoryMut<T> + ?Sized>(&mut self, memory: &'a mut S) -> &mut Self {
        let address = self.memory.write(memory);
        self.push(Slot::Address(address))
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
        let address = self.memory.read(memory);
        self.push_items::<T>(address, stride, span, reach)
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
        let address = self.memory.write(memory);
        self.push_items::<T>(address, stride, span, reach)
    }

    /// The address of a workspace. [`Guard::launch`](crate::Guard::launch) allocates it on the stream, uninitialised,
    /// with the bytes that [`BatchAxis::workspace`](crate::BatchAxis::workspace) declares for the items of the largest
    /// chunk. All chunks share the workspace, so they never overlap.
    ///
    /// If the allocation is out of memory, the chunks are halved, down to the smallest that the batch allows. During
    /// stream capture, within [`capture_launches`](crate::cuda::capture_launches), the allocation becomes a node of the
    /// graph. The memory is then reserved when the graph is instantiated or launched, and that call fails if there is
    /// too little. Limit the workspace to the memory that will be free, as
    /// [`Guard::workspace`](crate::Guard::workspace) does.
    pub fn workspace(&mut self) -> &mut Self {
        self.push(Slot::Workspace)
    }

    /// `T` is the type of the elements.
    fn push_items<T>(&mut self, base: u64, stride: u64, span: u64, reach_bytes: u64) -> &mut Self {
        let (stride_bytes, span_bytes) = (bytes_of::<T>(stride), bytes_of::<T>(span));
        self.push(Slot::Items { base, stride_bytes, span_bytes, reach_bytes })
    }

    pub(crate) const fn stream(&self) -> &'a CudaStream {
        self.memory.launches
    }

    pub(crate) const fn uses(&self) -> &MemoryUses<'a> {
        &self.memory
    }
}
