//! The driver's own sentence about a refused launch, from its log callback: since CUDA 12.9. A CUDA runtime may write one
//! too.

use core::cell::Cell;
use core::ffi::{c_char, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use crate::driver::Driver;
use crate::driver::abi::Handle;

/// Bytes of a sentence that are kept.
const MAX_BYTES: usize = 256;

thread_local! {
    /// The last sentence of this thread, and its bytes.
    static SENTENCE: Cell<([u8; MAX_BYTES], usize)> = const { Cell::new(([0; MAX_BYTES], 0)) };
}

/// Called with the sentence of a runtime that refuses a launch without a call of the driver.
static BY_RUNTIME: OnceLock<fn(&str)> = OnceLock::new();

/// Asks the driver for its log from now on. `by_runtime` is called with the sentences of runtimes.
pub(crate) fn listen(driver: &Driver, by_runtime: fn(&str)) {
    static LISTENING: AtomicBool = AtomicBool::new(false);
    if let Some(register) = driver.register_log
        && !LISTENING.swap(true, Ordering::AcqRel)
    {
        let _ = BY_RUNTIME.set(by_runtime);
        let mut callback: Handle = ptr::null_mut();
        // SAFETY: the function lives as long as the process, which never unloads a preloaded library; the pointer is to a
        // live handle. The program's own callbacks stay registered.
        let _ = unsafe { register(noted, ptr::null_mut(), &raw mut callback) };
    }
}

/// The sentence of this thread's last failing call.
pub(crate) fn take() -> Option<String> {
    let (bytes, length) = SENTENCE.replace(([0; MAX_BYTES], 0));
    let text = String::from_utf8_lossy(bytes.get(..length)?).into_owned();
    let text: String = text.chars().filter(|one| !one.is_control()).collect();
    (!text.is_empty()).then_some(text)
}

/// Called by the driver, on the thread whose call fails: a sentence, then `Returning 1 (...) from cuLaunchKernel`.
extern "C" fn noted(_data: *mut c_void, _level: c_uint, message: *mut c_char, length: usize) {
    if message.is_null() {
        return;
    }
    let mut kept = ([0; MAX_BYTES], length.min(MAX_BYTES));
    // SAFETY: the driver passes a message of this length.
    unsafe { ptr::copy_nonoverlapping(message.cast(), kept.0.as_mut_ptr(), kept.1) };
    let text = kept.0.get(..kept.1).unwrap_or_default();
    let contains = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
    if !text.starts_with(b"Returning ") {
        SENTENCE.set(kept);
        if OF_RUNTIMES.iter().any(|start| text.starts_with(start))
            && let Some(refused) = BY_RUNTIME.get()
        {
            refused(&String::from_utf8_lossy(text));
        }
    } else if !LAUNCHES.iter().any(|name| contains(name)) {
        // The sentence was about another call.
        SENTENCE.set(([0; MAX_BYTES], 0));
    }
}

/// How a runtime's sentences about a launch begin. The driver's sentences name one axis: `Grid Dimension Y of`.
const OF_RUNTIMES: [&[u8]; 3] =
    [b"Grid Dimensions (", b"Block Dimensions (", b"Total threads per block "];
/// The names that functions which launch begin with.
const LAUNCHES: [&[u8]; 2] = [b"from cuLaunch", b"from cuGraph"];
