//! Texts that the library returns, freeing, and versions.

use core::ffi::{c_char, c_void};
use std::ffi::CString;

use crate::failure::{Failure, gg_status};
use crate::handles;

/// A text that the library returned. Immutable; free it with `gg_free`.
pub struct gg_text(CString);

impl gg_text {
    pub(crate) fn new(text: impl Into<Vec<u8>>) -> Self {
        Self(c_string(text))
    }
}

/// The text with its zero bytes, which end texts in C, left out.
pub(crate) fn c_string(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let mut bytes = error.into_vec();
        bytes.retain(|byte| *byte != 0);
        CString::new(bytes).unwrap_or_default()
    })
}

/// The text in UTF-8, which ends with a zero byte; NULL for a wrong handle. It is valid until the
/// handle is freed.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_text_data(text: *const gg_text) -> *const c_char {
    // SAFETY: the caller does not free the handle meanwhile.
    let text = unsafe { handles::get(text, "text") };
    text.map_or(core::ptr::null(), |text| text.0.as_ptr())
}

/// Frees the object of a handle of any type. NULL is ignored.
///
/// Objects keep each other alive, so they can be freed in any order. Returns `GG_INVALID_HANDLE` for a handle that was
/// freed already, and for a number that is not a handle.
///
/// Thread-safe, but no other thread may be using the same handle, unless it waits in a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_free(handle: *mut c_void) -> gg_status {
    if handle.is_null() {
        return gg_status::GG_OK;
    }
    // SAFETY: by this function's contract, another thread uses the handle only if it waits in a callback. Its
    // call keeps the object.
    let freed = std::panic::catch_unwind(|| unsafe { handles::remove(handle.addr()) });
    match freed {
        Ok(freed) => freed.as_ref().map_or_else(Failure::status, |()| gg_status::GG_OK),
        Err(_) => gg_status::GG_INTERNAL,
    }
}

/// The version of the library: 1000000 * major + 1000 * minor + patch. Within a major version, and
/// within a minor version before 1.0, programs compiled with an older header work with a newer library.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn gg_version() -> u32 {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 1000
        + number(env!("CARGO_PKG_VERSION_PATCH"))
}
