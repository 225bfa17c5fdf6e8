//! Errors: the status of a call, why it failed, the object that the caller gets, and the function that every entry
//! point runs in.

use core::ffi::c_char;
use core::panic::AssertUnwindSafe;
use std::ffi::CString;
use std::panic::catch_unwind;

#[cfg(feature = "cuda")]
use gridguard::cuda::{CudaErrorKind, LaunchError};
use gridguard::{Axis, Error, Violation};

use crate::config::{GG_AXIS_X, GG_AXIS_Y, GG_AXIS_Z};
use crate::handles;
use crate::memory::{self, c_string, versioned};

/// The result of a call.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gg_status {
    /// It succeeded.
    GG_OK = 0,
    /// The launch breaks rules: see `gg_error_violation`.
    GG_REJECTED = 1,
    /// An argument is NULL, not UTF-8, malformed or out of range.
    GG_INVALID_ARGUMENT = 2,
    /// A handle is NULL, freed, of another type, or not a handle.
    GG_INVALID_HANDLE = 3,
    /// This version of the library does not know the `struct_size`.
    GG_INVALID_STRUCT = 4,
    /// There is no such GPU, device, violation or explanation.
    GG_NOT_FOUND = 5,
    /// The driver cannot be used, or a call to it failed: see `gg_error_driver_code`.
    GG_DRIVER = 6,
    /// The kernel's parameters do not fit the kernel or the batch.
    GG_PARAMETERS = 7,
    /// The library reached one of its own limits, or has a defect.
    GG_INTERNAL = 8,
}

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

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Failure {
    pub(crate) status: gg_status,
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("{0}")]
    Text(String),
    #[error(transparent)]
    Library(Box<Error>),
}

impl<E: Into<Error>> From<E> for Failure {
    #[cold]
    #[inline(never)]
    fn from(error: E) -> Self {
        let error = error.into();
        Self { status: status_of(&error), reason: Reason::Library(Box::new(error)) }
    }
}

impl Failure {
    #[cold]
    #[inline(never)]
    pub(crate) fn new(status: gg_status, text: impl Into<String>) -> Self {
        Self { status, reason: Reason::Text(text.into()) }
    }

    #[cold]
    pub(crate) fn null(what: &str) -> Self {
        Self::new(gg_status::GG_INVALID_ARGUMENT, format!("{what} is NULL"))
    }

    #[cold]
    pub(crate) fn range(what: &str, given: impl Into<u64>, expected: &str) -> Self {
        let text = format!("{what} is {}, expected {expected}", given.into());
        Self::new(gg_status::GG_INVALID_ARGUMENT, text)
    }

    /// The failure for a panic with this payload.
    #[cold]
    fn panicked(payload: &(dyn core::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let text = format!("gridguard failed: {}", text.unwrap_or("it panicked"));
        Self::new(gg_status::GG_INTERNAL, text)
    }

    /// The library's error, if it is one.
    pub(crate) fn library(&self) -> Option<&Error> {
        match &self.reason {
            Reason::Library(error) => Some(error),
            Reason::Text(_) => None,
        }
    }

    /// The `CUresult` that the driver returned, or would return for a rejected launch; 0 if there is
    /// none.
    pub(crate) fn driver_code(&self) -> i32 {
        let code = match self.library() {
            Some(Error::Violations(violations)) => violations.driver_code(),
            #[cfg(feature = "cuda")]
            Some(Error::Cuda(error)) => error.driver_code(),
            #[cfg(feature = "cuda")]
            Some(Error::Launch(error)) => error.driver_code(),
            _ => None,
        };
        code.unwrap_or(0)
    }

    /// The rules that the launch breaks, if it was rejected for them.
    pub(crate) fn violations(&self) -> impl Iterator<Item = &Violation> {
        let violations = match self.library() {
            Some(Error::Violations(violations)) => Some(violations),
            #[cfg(feature = "cuda")]
            Some(Error::Launch(error)) => error.violations(),
            _ => None,
        };
        violations.into_iter().flatten()
    }

    /// The progress of a launch that failed at a chunk.
    pub(crate) fn progress(&self) -> Option<gg_progress> {
        match self.library()? {
            #[cfg(feature = "cuda")]
            Error::Launch(LaunchError::Stopped(stopped)) => Some(gg_progress {
                struct_size: 0,
                chunk: stopped.chunk,
                chunks: stopped.launches,
                items_done: stopped.items_done,
                items: stopped.items,
            }),
            _ => None,
        }
    }
}

fn status_of(error: &Error) -> gg_status {
    match error {
        Error::Violations(_) => gg_status::GG_REJECTED,
        Error::Args(_) => gg_status::GG_PARAMETERS,
        Error::Catalog(error) if error.unknown_gpu().is_some() => gg_status::GG_NOT_FOUND,
        #[cfg(feature = "cuda")]
        Error::Cuda(error) if matches!(error.kind(), CudaErrorKind::NoSuchDevice { .. }) => {
            gg_status::GG_NOT_FOUND
        }
        #[cfg(feature = "cuda")]
        Error::Launch(LaunchError::Invalid(_)) => gg_status::GG_REJECTED,
        #[cfg(feature = "cuda")]
        Error::Launch(LaunchError::Args(_)) => gg_status::GG_PARAMETERS,
        #[cfg(feature = "cuda")]
        Error::Cuda(_) | Error::Launch(_) => gg_status::GG_DRIVER,
        _ => gg_status::GG_INTERNAL,
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
