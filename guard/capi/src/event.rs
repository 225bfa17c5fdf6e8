//! Events of launches, for the caller's log.

use core::ffi::{CStr, c_char, c_void};

use crate::error::progress_of;
use crate::failure::{Failure, gg_status};
use crate::text::c_string;

/// What happened at a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_event {
    /// The size of the structure, which a later version may append to.
    pub struct_size: usize,
    /// The kernel's name. All texts are valid during the callback.
    pub kernel: *const c_char,
    /// What failed; empty where nothing did.
    pub message: *const c_char,
    /// Launches that were submitted.
    pub launches: u64,
    /// `GG_EVENT_SPLIT`, `_REJECTED`, `_FAILED` or `_CHOICE_REJECTED`.
    pub kind: u32,
    /// The status that `gg_launch` returns.
    pub status: gg_status,
    /// The driver's code, as `gg_error_driver_code` returns it.
    pub driver_code: i32,
    /// 0.
    pub reserved: u32,
}

/// Called by `gg_launch`, on the thread that launches, once all launches were submitted or refused.
///
/// It may call any function of this library and of CUDA. It may free any handle, also that of the kernel:
/// the handle is wrong at once, and the object lives until `gg_launch` returns. A context that it makes
/// current stays current. It must return: an exception that leaves it ends the process, and `longjmp` out of
/// it is undefined.
pub type gg_event_callback =
    Option<unsafe extern "C-unwind" fn(event: *const gg_event, user_data: *mut c_void)>;

/// A request was split into several launches.
pub const GG_EVENT_SPLIT: u32 = 1;
/// A request was rejected before a launch.
pub const GG_EVENT_REJECTED: u32 = 2;
/// The driver refused a launch.
pub const GG_EVENT_FAILED: u32 = 3;
/// The batch's strategy was not legal and only a preference: the launch was planned automatically. The event
/// of its outcome, if it has one, follows.
pub const GG_EVENT_CHOICE_REJECTED: u32 = 4;

/// The caller's callback.
pub(crate) struct Listener {
    callback: unsafe extern "C-unwind" fn(*const gg_event, *mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the caller of `new` vouches that both can be used on any thread.
unsafe impl Send for Listener {}
// SAFETY: as above, at the same time too.
unsafe impl Sync for Listener {}

impl Listener {
    /// # Safety
    ///
    /// `callback` may be called with `user_data` on any thread, on several at the same time, for as long
    /// as the value lives.
    pub(crate) const unsafe fn new(
        callback: unsafe extern "C-unwind" fn(*const gg_event, *mut c_void),
        user_data: *mut c_void,
    ) -> Self {
        Self { callback, user_data }
    }

    /// Tells the outcome of a launch, and before it whether the caller's `choice_was_rejected`.
    pub(crate) fn tell(
        &self,
        kernel: &CStr,
        choice_was_rejected: bool,
        launched: &Result<u64, Failure>,
    ) {
        let (launches, outcome) = match launched {
            Ok(launches) => (*launches, (c"", gg_status::GG_OK, 0)),
            Err(failure) => {
                let done = progress_of(failure).map_or(0, |progress| progress.chunk);
                (done, (c"", failure.status(), failure.driver_code()))
            }
        };
        if choice_was_rejected {
            self.call(kernel, GG_EVENT_CHOICE_REJECTED, launches, outcome);
        }
        match launched {
            Ok(1) => {}
            Ok(_) => self.call(kernel, GG_EVENT_SPLIT, launches, outcome),
            Err(failure) => {
                let (message, (_, status, code)) = (c_string(failure.to_string()), outcome);
                let kind = match status {
                    gg_status::GG_DRIVER => GG_EVENT_FAILED,
                    _ => GG_EVENT_REJECTED,
                };
                self.call(kernel, kind, launches, (&message, status, code));
            }
        }
    }

    fn call(
        &self,
        kernel: &CStr,
        kind: u32,
        launches: u64,
        (message, status, driver_code): (&CStr, gg_status, i32),
    ) {
        let event = gg_event {
            struct_size: size_of::<gg_event>(),
            kernel: kernel.as_ptr(),
            message: message.as_ptr(),
            launches,
            kind,
            status,
            driver_code,
            reserved: 0,
        };
        // SAFETY: by the contract of `new`; the event lives during the call.
        unsafe { (self.callback)(&raw const event, self.user_data) }
    }
}
