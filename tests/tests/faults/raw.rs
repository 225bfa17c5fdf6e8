//! Driver calls that another part of a program makes without the guard.
#![allow(unsafe_code, reason = "calls of the driver that nobody guards")]

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::CudaContext;
use libloading::Library;

/// A driver function with an integer parameter.
type OfDevice = unsafe extern "C" fn(c_int) -> c_int;
/// A driver function with a handle.
type OfHandle = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The driver, loaded already by the guard.
fn library() -> Library {
    // SAFETY: the library is loaded already, so nothing runs.
    unsafe { Library::new("libcuda.so.1") }.expect("the driver")
}

fn call_of_device(symbol: &str) -> i32 {
    let library = library();
    // SAFETY: the signature of every function called here; device 0 exists.
    unsafe { library.get::<OfDevice>(symbol).expect("a symbol")(0) }
}

/// Destroys the primary context of device 0, even if it is in use.
pub(crate) fn reset_primary_context() -> i32 {
    call_of_device("cuDevicePrimaryCtxReset_v2")
}

/// Releases the primary context of device 0 once too often.
pub(crate) fn release_primary_context() -> i32 {
    call_of_device("cuDevicePrimaryCtxRelease_v2")
}

/// A context beside the primary one, current on this thread.
pub(crate) fn new_context() -> Arc<CudaContext> {
    type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
    // Initialises the driver if nothing else did.
    gridguard::cuda::device_count().expect("a device");
    let (library, mut context) = (library(), core::ptr::null_mut());
    // SAFETY: the pointer is to a live handle, and there is a device 0.
    let status = unsafe {
        library.get::<Create>("cuCtxCreate_v2").expect("a symbol")(&raw mut context, 0, 0)
    };
    assert_eq!(status, 0, "a second context");
    // SAFETY: created above, and owned by the result.
    unsafe { CudaContext::from_raw_context(0, 0, context.cast()) }.expect("its device answers")
}

/// Destroys a context, even if it is in use. Its owner does not destroy it again.
pub(crate) fn destroy_context(context: &Arc<CudaContext>) -> i32 {
    let library = library();
    core::mem::forget(Arc::clone(context));
    let destroy = "cuCtxDestroy_v2";
    // SAFETY: it was alive until now; the test uses it afterwards.
    unsafe { library.get::<OfHandle>(destroy).expect("a symbol")(context.cu_ctx().cast()) }
}

/// Destroys a stream, even if it is in use.
pub(crate) fn destroy_stream(stream: &cudarc::driver::CudaStream) -> i32 {
    let library = library();
    let destroy = "cuStreamDestroy_v2";
    // SAFETY: as for contexts.
    unsafe { library.get::<OfHandle>(destroy).expect("a symbol")(stream.cu_stream().cast()) }
}
