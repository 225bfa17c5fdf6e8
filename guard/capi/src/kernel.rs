//! Guards over the caller's context with events for its log, and kernels from its handles.

use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;
use std::sync::Arc;

use gridguard::Guard;
use gridguard::cuda::{Kernel, current_context};

use crate::error::{create, entry, gg_error};
use crate::failure::{Failure, gg_status};
use crate::handles;
use crate::limits::gg_limits;
use crate::memory::{self, c_string, versioned};

/// Launches in one context of the caller's, with its event callback. Immutable; free it with `gg_free`.
pub struct gg_guard(Arc<Guarded>);

/// The data that a guard and its kernels share.
pub(crate) struct Guarded {
    pub(crate) guard: Guard,
    pub(crate) listener: Option<Listener>,
}

/// The options of a guard. Zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_guard_options {
    /// Set it to `sizeof(gg_guard_options)`.
    pub struct_size: usize,
    /// The `CUcontext`; NULL for the calling thread's current context, for example the CUDA runtime's.
    pub context: *mut c_void,
    /// Called for events of launches; NULL for none.
    pub on_event: gg_event_callback,
    /// Passed to the callback, on any thread that launches.
    pub user_data: *mut c_void,
}

versioned!(gg_guard_options, 32);

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

/// A kernel of the caller's, with its limits. Immutable; free it with `gg_free`.
pub struct gg_kernel {
    pub(crate) kernel: Kernel,
    /// The sizes of its parameters in bytes.
    pub(crate) parameters: Vec<usize>,
    pub(crate) name: CString,
    pub(crate) guarded: Arc<Guarded>,
}

/// Numbers of all launches of the kernels of a guard.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_counts {
    /// Set it to `sizeof(gg_counts)`.
    pub struct_size: usize,
    /// Requests that were launched, whole or split.
    pub requests: u64,
    /// Launches that were submitted.
    pub launches: u64,
    /// Requests that took more than one launch.
    pub split: u64,
    /// Requests that stopped at a launch which the driver refused.
    pub refused_by_driver: u64,
    /// Broken rules of rejected requests.
    pub broken_rules: u64,
}

versioned!(gg_counts, 48);

/// Makes a guard for launches in the caller's context. The context must outlive the guard's kernels. `options`
/// may be NULL. `GG_NOT_FOUND` if no context is given or current, `GG_DRIVER` if there is no driver.
///
/// Thread-safe. The callback must be thread-safe too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_guard_create(
    options: *const gg_guard_options,
    out: *mut *mut gg_guard,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        // SAFETY: the caller's structure, for the time of this call.
        let options = unsafe { memory::read_optional(options, "options") }?;
        let given = options.map(|options| options.context).filter(|context| !context.is_null());
        let context = match given {
            Some(context) => context,
            None => {
                let none = || {
                    Failure::new(gg_status::GG_NOT_FOUND, "no context is current on this thread")
                };
                current_context()?.ok_or_else(none)?.as_ptr()
            }
        };
        // SAFETY: the caller vouches that the context outlives the guard and its kernels.
        let guard = unsafe { Guard::with_raw_context(context) }?;
        let listener = options.and_then(|options| {
            let user_data = options.user_data;
            options.on_event.map(|callback| Listener { callback, user_data })
        });
        Ok(gg_guard(Arc::new(Guarded { guard, listener })))
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

/// Makes a kernel from its `CUfunction` or `CUkernel`, which must belong to the guard's context and
/// outlive the kernel. Queries its limits and parameters once.
///
/// Messages use `name`; NULL for the driver's name. `parameter_sizes` are the sizes of its
/// `parameter_count` parameters in bytes. With NULL the driver is asked, which needs CUDA 12.4.
/// The calling thread's current context is the same afterwards.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_kernel_create(
    guard: *const gg_guard,
    function: *mut c_void,
    name: *const c_char,
    parameter_sizes: *const usize,
    parameter_count: usize,
    out: *mut *mut gg_kernel,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let guarded = &unsafe { handles::get(guard, "guard") }?.0;
        if function.is_null() {
            return Err(Failure::null("function"));
        }
        // SAFETY: the caller's text, for the time of this call.
        let name = unsafe { memory::optional_text(name, "name") }?;
        // SAFETY: the caller vouches that the function is alive, and of the guard's context.
        let kernel = unsafe { guarded.guard.raw_kernel(function, name) }?;
        // SAFETY: the caller's array, for the time of this call.
        let sizes = unsafe {
            memory::array(parameter_sizes, parameter_count, MAX_PARAMETERS, "parameter_sizes")
        };
        let declared =
            (!parameter_sizes.is_null()).then(|| sizes.map(<[_]>::to_vec)).transpose()?;
        let parameters = parameters_of(&kernel, declared)?;
        let (name, guarded) = (c_string(kernel.name()), Arc::clone(guarded));
        Ok(gg_kernel { kernel, parameters, name, guarded })
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

/// The limits of a kernel on its device, for `gg_validate` and `gg_plan`. They include the shared memory
/// that needs opt-in, since `gg_launch` opts in.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_kernel_limits(
    kernel: *const gg_kernel,
    out: *mut *mut gg_limits,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let kernel = unsafe { handles::get(kernel, "kernel") }?;
        Ok(gg_limits::new(kernel.kernel.limits().clone()))
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

/// Writes the counts of the kernel's guard to `out`.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_kernel_counts(
    kernel: *const gg_kernel,
    out: *mut gg_counts,
    error: *mut *mut gg_error,
) -> gg_status {
    let body = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let counts = unsafe { handles::get(kernel, "kernel") }?.guarded.guard.counts();
        let counts = gg_counts {
            struct_size: 0,
            requests: counts.plans,
            launches: counts.launches,
            split: counts.split,
            refused_by_driver: counts.refused_by_driver,
            broken_rules: counts.rejections.iter().map(|(_, count)| count).sum(),
        };
        // SAFETY: `out` is the caller's.
        unsafe { memory::write(out, &counts, "out") }
    };
    // SAFETY: `error` is the caller's.
    unsafe { entry(error, body) }
}

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
                event.launches = failure.progress().map_or(0, |progress| progress.chunk);
                (event.status, event.driver_code) = (failure.status, failure.driver_code());
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

/// The driver's parameter sizes, or else the declared ones.
fn parameters_of(raw: &Kernel, declared: Option<Vec<usize>>) -> Result<Vec<usize>, Failure> {
    let failed = |text| Err(Failure::new(gg_status::GG_PARAMETERS, text));
    let kernel = raw.name();
    match (raw.parameter_sizes(), declared) {
        (Some(known), Some(declared)) if known != declared => failed(format!(
            "kernel {kernel} has parameters of {known:?} bytes, but {declared:?} are declared"
        )),
        (Some(known), _) => Ok(known),
        (None, Some(declared)) => Ok(declared),
        (None, None) => failed(format!(
            "the driver does not know the parameters of kernel {kernel}: pass their sizes"
        )),
    }
}

/// More parameters than fit the 32,764 bytes of a kernel.
const MAX_PARAMETERS: usize = 1 << 15;
