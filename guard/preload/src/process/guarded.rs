//! Runs work off the hot path, unnoticed by the program.

use core::ffi::c_int;
use core::ptr;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`. A panic ends only `work`, and the result is `None`. A cancellation of the thread is deferred, and
/// `errno` is restored.
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> Option<R> {
    let before = errno();
    // The values that `work` shares are atomics, or are read only once written.
    let result = without_cancellation(|| catch_unwind(AssertUnwindSafe(work)).ok());
    set_errno(before);
    result
}

fn errno() -> c_int {
    // SAFETY: the C library returns the address of this thread's own variable.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: the C library returns the address of this thread's own variable.
    unsafe { *libc::__errno_location() = value };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

/// Runs `work`, which must not unwind. A cancellation of this thread is deferred.
fn without_cancellation<R>(work: impl FnOnce() -> R) -> R {
    let mut before = 0;
    // SAFETY: the pointer is to a live integer.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
    let result = work();
    // SAFETY: the state that the first call wrote.
    unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
    result
}
