//! Events of launches, for the caller's log.

use core::ffi::{CStr, c_char, c_void};

use crate::error::progress_of;
use crate::failure::{Failure, gg_status};
use crate::text::c_string;

/// An event of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_event {
    /// The size of the structure, which a later version may append to.
    pub struct_size: usize,
    /// The kernel's name. All texts are valid during the callback.
    pub kernel: *const c_char,
    /// What failed; empty if nothing did.
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
/// The callback may call any function of this library and of CUDA. It may free any handle, also the kernel's:
/// the handle is wrong at once, and the object lives until `gg_launch` returns. A context that the callback makes
/// current stays current. The callback must return: an exception that leaves it ends the process, and `longjmp`
/// out of it is undefined.
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

/// The caller's callback. `gg_guard_create` requires that it can be called with `user_data` on several threads at
/// the same time, as long as the guard and its kernels live.
pub(crate) struct Listener {
    pub(crate) callback: unsafe extern "C-unwind" fn(*const gg_event, *mut c_void),
    pub(crate) user_data: *mut c_void,
}

// SAFETY: both can be used on any thread.
unsafe impl Send for Listener {}
// SAFETY: both can be used on several threads at the same time.
unsafe impl Sync for Listener {}

impl Listener {
    /// Tells the outcome of a launch, and before it whether the caller's `choice_was_rejected`.
    pub(crate) fn tell(
        &self,
        kernel: &CStr,
        choice_was_rejected: bool,
        launched: &Result<u64, Failure>,
    ) {
        // SAFETY: the callback's contract. The event and its texts live during the call.
        let call = |event: &gg_event| unsafe { (self.callback)(event, self.user_data) };
        let mut event = gg_event {
            struct_size: size_of::<gg_event>(),
            kernel: kernel.as_ptr(),
            message: c"".as_ptr(),
            launches: 0,
            kind: GG_EVENT_SPLIT,
            status: gg_status::GG_OK,
            driver_code: 0,
            reserved: 0,
        };
        match launched {
            Ok(launches) => event.launches = *launches,
            Err(failure) => {
                event.launches = progress_of(failure).map_or(0, |progress| progress.chunk);
                (event.status, event.driver_code) = (failure.status(), failure.driver_code());
            }
        }
        if choice_was_rejected {
            call(&gg_event { kind: GG_EVENT_CHOICE_REJECTED, ..event });
        }
        match launched {
            Ok(1) => {}
            Ok(_) => call(&event),
            Err(failure) => {
                let message = c_string(failure.to_string());
                let refused = event.status == gg_status::GG_DRIVER;
                let kind = if refused { GG_EVENT_FAILED } else { GG_EVENT_REJECTED };
                call(&gg_event { kind, message: message.as_ptr(), ..event });
            }
        }
    }
}
