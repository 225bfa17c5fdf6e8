//! Errors: the object that the caller gets, and the functions that every entry point runs in.

use core::ffi::c_char;
use core::panic::AssertUnwindSafe;
use std::ffi::CString;
use std::panic::catch_unwind;

use gridguard::{Axis, Violation};
#[cfg(feature = "cuda")]
use gridguard::{Error, cuda::LaunchErrorKind};

use crate::config::{GG_AXIS_X, GG_AXIS_Y, GG_AXIS_Z};
use crate::failure::{Failure, gg_status};
use crate::handles::{self, MAX_OBJECTS};
use crate::memory::{self, c_string, versioned};

/// Why a call failed. Immutable; free it with `gg_free`.
pub struct gg_error {
    pub(crate) failure: Failure,
    message: CString,
    /// The rule and the message of each violation, as C reads them.
    violations: Vec<(CString, CString)>,
}

/// One rule that a launch breaks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_violation {
    /// Set it to `sizeof(gg_violation)`.
    pub struct_size: usize,
    /// The rule's stable id, for example `grid-dim-y`. Valid until the error is freed, as `message`.
    pub rule: *const c_char,
    /// What is wrong, whose limit it is, and how to make the launch legal.
    pub message: *const c_char,
    /// The requested value, in the rule's unit; `UINT64_MAX` if it is larger.
    pub requested: u64,
    /// The limit, in the rule's unit.
    pub limit: u64,
    /// The axis, `GG_AXIS_X` to `GG_AXIS_Z`, or `GG_AXIS_NONE`.
    pub axis: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(gg_violation, 48);

/// The progress of a launch until the driver refused one of its chunks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_progress {
    /// Set it to `sizeof(gg_progress)`.
    pub struct_size: usize,
    /// The refused chunk, from 0.
    pub chunk: u64,
    /// Chunks of the whole plan.
    pub chunks: u64,
    /// Items of the chunks before it, which were submitted.
    pub items_done: u64,
    /// Items of the batch.
    pub items: u64,
}

versioned!(gg_progress, 40);

/// The rule of a violation has no axis.
pub const GG_AXIS_NONE: u32 = 3;

/// The status of the error; `GG_INVALID_HANDLE` for a wrong handle.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_error_status(error: *const gg_error) -> gg_status {
    // SAFETY: the caller does not free the handle meanwhile.
    let error = unsafe { handles::get(error, "error") };
    error.map_or_else(|wrong| wrong.status, |error| error.failure.status)
}

/// The message in UTF-8; NULL for a wrong handle. It is valid until the error is freed.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_error_message(error: *const gg_error) -> *const c_char {
    // SAFETY: the caller does not free the handle meanwhile.
    let error = unsafe { handles::get(error, "error") };
    error.map_or(core::ptr::null(), |error| error.message.as_ptr())
}

/// The `CUresult` that the driver returned, or would return for a launch that breaks rules; 0 where
/// there is none, and for a wrong handle.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_error_driver_code(error: *const gg_error) -> i32 {
    // SAFETY: the caller does not free the handle meanwhile.
    let error = unsafe { handles::get(error, "error") };
    error.map_or(0, |error| error.failure.driver_code())
}

/// How many rules the launch breaks; 0 for errors of another status, and for a wrong handle.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_error_violation_count(error: *const gg_error) -> usize {
    // SAFETY: the caller does not free the handle meanwhile.
    let error = unsafe { handles::get(error, "error") };
    error.map_or(0, |error| error.violations.len())
}

/// Writes the violation at `index`, from 0, to `out`.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_error_violation(
    error: *const gg_error,
    index: usize,
    out: *mut gg_violation,
) -> gg_status {
    let body = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let error = unsafe { handles::get(error, "error") }?;
        let mut violations = error.failure.violations().zip(&error.violations);
        let none = || Failure::new(gg_status::GG_NOT_FOUND, format!("no violation {index}"));
        let (violation, (rule, message)) = violations.nth(index).ok_or_else(none)?;
        let found = gg_violation {
            struct_size: 0,
            rule: rule.as_ptr(),
            message: message.as_ptr(),
            requested: u64::try_from(violation.requested).unwrap_or(u64::MAX),
            limit: violation.limit,
            axis: match violation.axis {
                Some(Axis::X) => GG_AXIS_X,
                Some(Axis::Y) => GG_AXIS_Y,
                Some(Axis::Z) => GG_AXIS_Z,
                None => GG_AXIS_NONE,
            },
            reserved: 0,
        };
        // SAFETY: `out` is the caller's.
        unsafe { memory::write(out, &found, "out") }
    };
    // SAFETY: no error object is wanted.
    unsafe { entry(core::ptr::null_mut(), body) }
}

/// Writes the progress of a split launch to `out`; `GG_NOT_FOUND` for errors before the first launch.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_error_progress(
    error: *const gg_error,
    out: *mut gg_progress,
) -> gg_status {
    let body = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let error = unsafe { handles::get(error, "error") }?;
        let none = || Failure::new(gg_status::GG_NOT_FOUND, "nothing was launched");
        let progress = error.failure.progress().ok_or_else(none)?;
        // SAFETY: `out` is the caller's.
        unsafe { memory::write(out, &progress, "out") }
    };
    // SAFETY: no error object is wanted.
    unsafe { entry(core::ptr::null_mut(), body) }
}

/// Runs the body of an entry point: turns its failure, or its panic, into a status and an error object.
///
/// # Safety
///
/// `error` is null, or points to memory for a handle that nothing else accesses.
#[inline]
pub(crate) unsafe fn entry(
    error: *mut *mut gg_error,
    body: impl FnOnce() -> Result<(), Failure>,
) -> gg_status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {
            if !error.is_null() {
                // SAFETY: not null, so it points to memory for a handle.
                unsafe { error.write_unaligned(core::ptr::null_mut()) };
            }
            return gg_status::GG_OK;
        }
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let failure = Failure::panicked(&*payload);
            // Dropping it may panic.
            core::mem::forget(payload);
            failure
        }
    };
    // SAFETY: this function's contract.
    unsafe { report(error, failure) }
}

/// # Safety
///
/// As [`entry`].
#[cold]
unsafe fn report(error: *mut *mut gg_error, failure: Failure) -> gg_status {
    let status = failure.status;
    if !error.is_null() {
        let made = catch_unwind(AssertUnwindSafe(|| handles::insert(gg_error::new(failure))));
        let handle = made.ok().flatten().unwrap_or(core::ptr::null_mut());
        // SAFETY: not null, so it points to memory for a handle.
        unsafe { error.write_unaligned(handle) };
    }
    status
}

impl gg_error {
    fn new(failure: Failure) -> Self {
        let texts = |one: &Violation| (c_string(one.rule.id()), c_string(one.to_string()));
        let violations = failure.violations().map(texts).collect();
        Self { message: c_string(failure.to_string()), violations, failure }
    }
}

/// Runs the body of an entry point that gives the caller a handle of what `make` returns, at `out`.
///
/// # Safety
///
/// `out` and `error` are null, or point to memory for a handle that nothing else accesses.
pub(crate) unsafe fn create<T: Send + Sync + 'static>(
    out: *mut *mut T,
    error: *mut *mut gg_error,
    make: impl FnOnce() -> Result<T, Failure>,
) -> gg_status {
    let body = || {
        if out.is_null() {
            return Err(Failure::null("out"));
        }
        // SAFETY: not null, so it points to memory for a handle.
        unsafe { out.write_unaligned(core::ptr::null_mut()) };
        let handle = handles::insert(make()?).ok_or_else(|| {
            let text =
                format!("more than {MAX_OBJECTS} objects at the same time: free some with gg_free");
            Failure::new(gg_status::GG_INTERNAL, text)
        })?;
        // SAFETY: as above.
        unsafe { out.write_unaligned(handle) };
        Ok(())
    };
    // SAFETY: this function's contract.
    unsafe { entry(error, body) }
}

impl Failure {
    /// The progress of a launch that failed at a chunk.
    pub(crate) fn progress(&self) -> Option<gg_progress> {
        match self.library()? {
            #[cfg(feature = "cuda")]
            Error::Launch(error) => match error.kind() {
                LaunchErrorKind::Stopped(stopped) => Some(gg_progress {
                    struct_size: 0,
                    chunk: stopped.chunk,
                    chunks: stopped.launches,
                    items_done: stopped.items_done,
                    items: stopped.items,
                }),
                _ => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let mut error = core::ptr::null_mut();
        // SAFETY: `error` is a live pointer.
        let status = unsafe { entry(&raw mut error, || panic!("no {}", 7)) };
        assert_eq!(status, gg_status::GG_INTERNAL);
        // SAFETY: only this test has the handle.
        let made = unsafe { handles::get(error, "error") }.expect("an error");
        assert_eq!(made.message.to_str(), Ok("gridguard failed: no 7"));
    }
}
