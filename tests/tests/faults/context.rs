//! Contexts that another part of the program destroys while a guard uses them.
#![allow(unsafe_code, reason = "calls of the driver that nobody guards")]

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::CudaContext;
use gridguard::Guard;
use gridguard_test_support::Random;
use libloading::Library;

use crate::observed::{Expected, Observed, Seen};
use crate::setup::{CALLS, Call, Client, Setup, context};

/// How the context is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The primary context is reset.
    Reset,
    /// The primary context is released once too often.
    Release,
    /// A context of the program, by another thread, while it is current on this one.
    Destroy,
}

/// Codes of a destroyed context: deinitialised, invalid, destroyed, or unknown handles.
const GONE: [i32; 4] = [4, 201, 709, 400];

pub(crate) fn inject(setup: &Setup, number: u64, random: &mut Random) -> Observed {
    let (how, elsewhere) = match number % 4 {
        0 => (How::Reset, false),
        1 => (How::Reset, true),
        2 => (How::Release, false),
        _ => (How::Destroy, true),
    };
    let first = CALLS[usize::try_from(number / 4 % 6).expect("few")];
    let (items, under_way) = (1 + random.below(100_000), random.below(5));
    let guard = match how {
        How::Destroy => Guard::with_context(new_context()).expect("a guard"),
        _ => setup.guard(),
    };
    let owner = Arc::clone(context(&guard));
    // cudarc would destroy its events after the context, which the driver does not survive (H200, 580.159.04).
    // SAFETY: all work is on one stream.
    unsafe { owner.disable_event_tracking() };
    let mut client = Client::new(setup, guard, owner.default_stream(), items);
    for _ in 0..under_way {
        client.launch().expect("the context is alive");
    }
    let status = match elsewhere {
        true => std::thread::scope(|scope| scope.spawn(|| destroy(how, &owner)).join()),
        false => Ok(destroy(how, &owner)),
    };
    assert_eq!(status.expect("no panic"), 0, "the context was alive");
    let seen = client.call(first);
    let outcomes: &[&str] = match first {
        Call::Launch | Call::LaunchWithWorkspace => &["LaunchError::"],
        Call::Occupancy => &["DriverError/"],
        _ => &["CudaError::Driver/", "CudaError::Load/", "CudaError::Refused/"],
    };
    let drawn =
        format!("{how:?}, elsewhere {elsewhere}, {first:?}, {items} items, {under_way} under way");
    let expected = Expected { outcomes, codes: &GONE, ..Expected::default() };
    let mut observed = Observed::new(drawn, &seen, &expected);
    for call in CALLS {
        let Seen { code, outcome, .. } = client.call(call);
        let gone = code.is_some_and(|code| GONE.contains(&code));
        observed.require(gone, || format!("afterwards {call:?} came to {outcome}"));
    }
    // The old context is gone completely before a new one is created.
    drop((client, owner));
    let renewed = Guard::cuda(0).map_err(|error| error.to_string());
    let renewed = renewed.and_then(|guard| setup.check_launch(&guard));
    observed.require(renewed.is_ok(), || format!("a new guard: {renewed:?}"));
    observed
}

/// The driver, loaded already by the guard.
fn driver() -> Library {
    // SAFETY: the library is loaded already, so nothing runs.
    unsafe { Library::new("libcuda.so.1") }.expect("the driver")
}

/// A context beside the primary one, current on this thread.
fn new_context() -> Arc<CudaContext> {
    type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
    // Initialises the driver if nothing else did.
    gridguard::cuda::device_count().expect("a device");
    let (library, mut context) = (driver(), core::ptr::null_mut());
    // SAFETY: the pointer is to a live handle, and there is a device 0.
    let status = unsafe {
        library.get::<Create>("cuCtxCreate_v2").expect("a symbol")(&raw mut context, 0, 0)
    };
    assert_eq!(status, 0, "a second context");
    // SAFETY: created above, and owned by the result.
    unsafe { CudaContext::from_raw_context(0, 0, context.cast()) }.expect("its device answers")
}

/// Destroys a context, even if it is in use. Its owner does not destroy it again.
fn destroy(how: How, context: &Arc<CudaContext>) -> i32 {
    let library = driver();
    if how == How::Destroy {
        type OfHandle = unsafe extern "C" fn(*mut c_void) -> c_int;
        core::mem::forget(Arc::clone(context));
        let name = "cuCtxDestroy_v2";
        // SAFETY: it was alive until now; the test uses it afterwards.
        return unsafe {
            library.get::<OfHandle>(name).expect("a symbol")(context.cu_ctx().cast())
        };
    }
    type OfDevice = unsafe extern "C" fn(c_int) -> c_int;
    let reset = how == How::Reset;
    let name = if reset { "cuDevicePrimaryCtxReset_v2" } else { "cuDevicePrimaryCtxRelease_v2" };
    // SAFETY: the signature of both functions; device 0 exists.
    unsafe { library.get::<OfDevice>(name).expect("a symbol")(0) }
}
