//! Device memory that launches take as arguments: cudarc's slices and views.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice,
    MappedBuffer, SyncOnDrop, UnifiedSlice, UnifiedView, UnifiedViewMut,
};

use crate::dim::saturated;

/// Device memory of elements `T` that a kernel may read: the slices and views of cudarc.
///
/// Only cudarc's types implement this trait, and only for their own elements: a launch relies on the reported address,
/// size and context, and on the recorded use.
pub trait Memory<T>: DevicePtr<T> + Sealed<T> {}

impl<T, S: DevicePtr<T> + Sealed<T>> Memory<T> for S {}

/// As [`Memory`], that a kernel may also write.
pub trait MemoryMut<T>: DevicePtrMut<T> + Sealed<T> {}

impl<T, S: DevicePtrMut<T> + Sealed<T>> MemoryMut<T> for S {}

/// Names the element type, since anyone may implement cudarc's traits for its types and elements of
/// their own.
pub trait Sealed<T> {
    /// Whether one event stands for reads and writes, and is waited for whether cudarc tracks the
    /// memory or not.
    fn has_one_event(&self) -> bool {
        true
    }

    /// Whether cudarc's order of the memory's uses is enough.
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

/// Device memory whose other uses are already ordered before and after the launches.
///
/// On cudarc's per-thread stream, a launch over untracked memory of that stream waits for the whole context first,
/// and synchronises afterwards: the handle does not tell which thread used the memory. Frameworks that submit all work of a thread to this stream, such as candle, need no
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
    /// Wraps `memory`, a slice or a view of cudarc.
    ///
    /// # Safety
    ///
    /// Conflicting work on the memory that is submitted before a launch runs before it. Work that is submitted
    /// later, freeing the memory included, runs after it.
    pub const unsafe fn new(memory: S) -> Self {
        Self(memory)
    }

    /// Returns the memory.
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

pub(crate) fn bytes_of<T>(elements: u64) -> u64 {
    elements.saturating_mul(saturated(size_of::<T>()))
}
