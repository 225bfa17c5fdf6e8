//! Launches that are captured into graphs.

use core::cell::Cell;

/// Calls `launches`, in which this thread's launches may be captured: elsewhere a
/// [`Guard`](crate::Guard) refuses a stream that is being captured with
/// [`LaunchError::Captured`](super::LaunchError::Captured), because a graph holds neither kernels nor
/// memory.
///
/// It begins and ends no capture, so it works with any way to capture, on any number of streams. Capture
/// in a context whose event tracking is disabled: cudarc's events cannot be waited for in a capture.
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
/// - the kernel and the memory of the launch's arguments are alive: keep the [`Kernel`](super::Kernel), or
///   what holds it, and the slices;
/// - no other work writes memory that the launch uses, or reads memory that it writes, unless it is ordered
///   before or after the graph: cudarc's events do not include what a graph does, nor does freeing a slice
///   wait for it.
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
pub(super) fn may_capture() -> bool {
    MAY_CAPTURE.get()
}

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
                let elsewhere = std::thread::spawn(may_capture).join().expect("it ends");
                let nested = capture_launches(may_capture);
                (may_capture(), elsewhere, nested)
            })
        };
        assert!(inside && nested && !elsewhere && !may_capture());
        let panicked = std::panic::catch_unwind(|| {
            // SAFETY: as above.
            unsafe { capture_launches(|| panic!("within")) }
        });
        assert!(panicked.is_err() && !may_capture());
    }
}
