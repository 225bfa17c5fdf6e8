//! Launches that are captured into graphs.

use core::cell::Cell;
use core::ffi::c_int;
use core::marker::PhantomData;
use core::time::Duration;
use std::thread;

use cudarc::driver::result;

use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::library::CAPTURE_ERRORS;
use crate::cuda::driver::symbols::{Driver, Handle};

/// Calls `launches`. Within it, launches of this thread may be captured. Elsewhere a
/// [`Guard`](crate::Guard) refuses a stream that is being captured, with
/// [`LaunchErrorKind::Captured`](crate::cuda::LaunchErrorKind::Captured): a graph keeps neither kernels nor memory alive.
///
/// The guard queries the launch's own stream before the first launch and between the chunks of a split launch.
/// It queries once more after the last launch if cudarc tracks the memory. Subscribers of `tracing` and
/// recorders of `metrics` run before the first query, or after later uses of the memory are ordered.
///
/// If another thread begins a capture meanwhile, the guard invalidates it, so that it yields no graph, and
/// launches no further chunks. The guard then ends the capture, or waits for the launches if the capture began on
/// another stream.
///
/// One case goes unseen: another thread begins a capture between a query and the launch, and ends it before
/// the next query. So no other thread may capture a stream while a guard launches on it.
///
/// `capture_launches` begins and ends no capture, so it works with any way to capture, on any number of streams.
/// Capture in a context whose event tracking is disabled: cudarc's events cannot be waited for in a capture.
///
/// ```no_run
/// use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
/// use cudarc::driver::{CudaGraph, CudaStream};
/// use gridguard::cuda::{Args, Kernel, LaunchError, capture_launches};
/// use gridguard::{Guard, Plan};
///
/// /// # Safety
/// ///
/// /// The kernel outlives the graph.
/// unsafe fn capture(
///     guard: &Guard,
///     kernel: &Kernel,
///     plan: &Plan,
///     stream: &std::sync::Arc<CudaStream>,
/// ) -> Result<Option<CudaGraph>, Box<dyn std::error::Error>> {
///     stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
///     // SAFETY: this function's contract; the kernel takes no memory.
///     let launched = unsafe {
///         capture_launches(|| guard.launch(kernel, plan, Args::new(stream)))
///     };
///     let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
///     launched?;
///     Ok(graph)
/// }
/// ```
///
/// # Safety
///
/// For every launch that is captured in `launches`, and as long as the graph, or one that it becomes part
/// of, is launched or still runs:
/// - the kernel and the memory of the launch's arguments are alive: keep the [`Kernel`](crate::cuda::Kernel), or
///   what holds it, and the slices;
/// - other work on the memory is ordered before or after the graph, unless both only read. cudarc's events do
///   not cover a graph, and freeing a slice does not wait for it.
pub unsafe fn capture_launches<R>(launches: impl FnOnce() -> R) -> R {
    struct Restored(bool);

    impl Drop for Restored {
        fn drop(&mut self) {
            MAY_CAPTURE.set(self.0);
        }
    }

    let _restored = Restored(MAY_CAPTURE.replace(true));
    launches()
}

/// Whether this thread is within [`capture_launches`].
pub fn may_capture() -> bool {
    MAY_CAPTURE.get()
}

/// Whether work on `stream` would be captured although no caller promised [`capture_launches`]. A failed query means an
/// error in the context; the work then fails too.
///
/// # Safety
///
/// `stream` is a live stream of the current context, or null for its default one.
#[inline]
pub(crate) unsafe fn is_captured(driver: &Driver, stream: Handle) -> bool {
    // SAFETY: this function's contract.
    let captures = unsafe { driver.captures(stream) };
    captures == Ok(true) && !may_capture()
}

/// Discards the capture that another thread began on `stream`: it may contain earlier launches of this call.
///
/// # Safety
///
/// As [`is_captured`].
#[cold]
pub(crate) unsafe fn refuse_rest(driver: &Driver, stream: Handle) -> DriverError {
    // SAFETY: this function's contract.
    unsafe { discard(driver, stream) };
    driver.error(None, "cuStreamIsCapturing", *CAPTURE_ERRORS.start())
}

/// Invalidates and ends the capture of `stream`, and waits for the stream's earlier work. Returns `false` if the stream
/// joined a capture of another stream, where alone it can be ended. Then all work of the context is done.
///
/// # Safety
///
/// As [`is_captured`].
#[cold]
pub(crate) unsafe fn discard(driver: &Driver, stream: Handle) -> bool {
    let _relaxed = RelaxedCapture::begin(driver);
    // The first synchronisation makes the capture invalid. Any thread can end it then (H200, CUDA 13.0).
    // SAFETY: the stream is alive, by this function's contract.
    let is_captured = || CAPTURE_ERRORS.contains(&unsafe { (driver.stream_synchronize)(stream) });
    while is_captured() {
        let mut graph = core::ptr::null_mut();
        // SAFETY: the stream is alive, by this function's contract; the pointer is to a live handle.
        let ended = unsafe { (driver.stream_end_capture)(stream, &raw mut graph) };
        if ended == 0 && !graph.is_null() {
            // SAFETY: the call above returned the graph, and nothing else has it.
            let _ = unsafe { (driver.graph_destroy)(graph) };
        }
        if !is_captured() {
            break;
        }
        if wait_for_all() {
            return false;
        }
        // No memory is free.
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Waits for all work of the current context, also while a stream of it is in a capture, which `cuCtxSynchronize`
/// refuses. `cuMemFree` synchronises all streams (CUDA C++ Programming Guide, stream-ordered memory allocator), whatever
/// is captured (H200, CUDA 13.0). Returns whether it did.
fn wait_for_all() -> bool {
    // SAFETY: the memory is used by nothing. `discard`'s caller made a context current.
    let freed = unsafe { result::malloc_sync(1).map(|memory| result::free_sync(memory)) };
    matches!(freed, Ok(Ok(())))
}

/// Lets this thread wait for work during captures.
pub(crate) struct RelaxedCapture<'d> {
    driver: &'d Driver,
    before: Option<c_int>,
    /// Makes this type neither `Send` nor `Sync`: the mode is the thread's.
    this_thread: PhantomData<*mut ()>,
}

impl<'d> RelaxedCapture<'d> {
    pub(crate) fn begin(driver: &'d Driver) -> Self {
        let mut mode = RELAXED;
        // SAFETY: the pointer is to a live integer, which has the mode before if the call succeeds.
        let status = unsafe { (driver.exchange_capture_mode)(&raw mut mode) };
        Self { driver, before: (status == 0).then_some(mode), this_thread: PhantomData }
    }
}

impl Drop for RelaxedCapture<'_> {
    fn drop(&mut self) {
        if let Some(mode) = &mut self.before {
            // SAFETY: the pointer is to a live integer.
            let _ = unsafe { (self.driver.exchange_capture_mode)(&raw mut *mode) };
        }
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

thread_local! {
    static MAY_CAPTURE: Cell<bool> = const { Cell::new(false) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code, reason = "nothing is captured")]
    fn launches_may_be_captured_within_the_call_and_on_its_thread_only() {
        // SAFETY: nothing is launched.
        let (inside, elsewhere, nested) = unsafe {
            capture_launches(|| {
                let elsewhere = thread::spawn(may_capture).join().expect("it ends");
                let nested = capture_launches(may_capture);
                (may_capture(), elsewhere, nested)
            })
        };
        assert!(inside && nested && !elsewhere && !may_capture());
        let panicked = std::panic::catch_unwind(|| {
            // SAFETY: nothing is launched.
            unsafe { capture_launches(|| panic!("within")) }
        });
        assert!(panicked.is_err() && !may_capture());
    }
}
