//! The launch functions: each calls its original and counts what was launched.

use core::cell::Cell;
use core::ffi::{c_uint, c_void};
use core::sync::atomic::Ordering;

use crate::abi::{
    Handle, LaunchConfig, LaunchCooperative, LaunchEx, LaunchKernel, NOT_INITIALIZED, SUCCESS,
    Status,
};
use crate::functions::{self, FUNCTIONS};
use crate::request::{Launch, configured};
use crate::table::{self, Largest};
use crate::{late, watch};

/// `cuLaunchKernel`.
pub(crate) unsafe extern "C-unwind" fn kernel<const H: usize, const S: usize>(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    let Some(original) = functions::original::<H, S, LaunchKernel>() else {
        return NOT_INITIALIZED;
    };
    watched(
        || {
            // SAFETY: the caller's own arguments.
            unsafe {
                original(
                    function,
                    grid_x,
                    grid_y,
                    grid_z,
                    block_x,
                    block_y,
                    block_z,
                    shared_bytes,
                    stream,
                    parameters,
                    extra,
                )
            }
        },
        || {
            let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
            Launch::plain((H, S), function, grid, block, (shared_bytes, stream))
        },
    )
}

/// `cuLaunchCooperativeKernel`.
pub(crate) unsafe extern "C-unwind" fn cooperative<const H: usize, const S: usize>(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    parameters: *mut *mut c_void,
) -> Status {
    let Some(original) = functions::original::<H, S, LaunchCooperative>() else {
        return NOT_INITIALIZED;
    };
    watched(
        || {
            // SAFETY: the caller's own arguments.
            unsafe {
                original(
                    function,
                    grid_x,
                    grid_y,
                    grid_z,
                    block_x,
                    block_y,
                    block_z,
                    shared_bytes,
                    stream,
                    parameters,
                )
            }
        },
        || {
            let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
            let launch = Launch::plain((H, S), function, grid, block, (shared_bytes, stream));
            Launch { cooperative: true, ..launch }
        },
    )
}

/// `cuLaunchKernelEx`.
pub(crate) unsafe extern "C-unwind" fn kernel_ex<const H: usize, const S: usize>(
    config: *const LaunchConfig,
    function: Handle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    let Some(original) = functions::original::<H, S, LaunchEx>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(config, function, parameters, extra) };
    // SAFETY: null or a live configuration, as the driver demands of its caller.
    match unsafe { config.as_ref() } {
        // SAFETY: as above.
        Some(config) => watched(call, || unsafe { configured((H, S), function, config) }),
        None => call(),
    }
}

thread_local! {
    /// Whether a launch of this thread is in a replacement already: a library between this one and the
    /// driver calls another one.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls the original, and counts the launch that `describe` returns if it is the outermost one.
#[inline(always)]
fn watched(call: impl FnOnce() -> Status, describe: impl Fn() -> Launch) -> Status {
    if INSIDE.replace(true) {
        return call();
    }
    let status = call();
    if status == SUCCESS {
        accepted(describe);
    } else {
        watch::refused(&describe(), status);
    }
    INSIDE.set(false);
    status
}

/// Counts an accepted launch. What needs it in memory describes it anew, so that its sizes stay in registers
/// here: reading them back right after they were written takes longer than all else.
#[inline(always)]
fn accepted(describe: impl Fn() -> Launch) {
    let launch = describe();
    let threads = launch.block[0].wrapping_mul(launch.block[1]).wrapping_mul(launch.block[2]);
    let largest = Largest { grid: launch.grid, threads, shared_bytes: launch.shared_bytes };
    match table::find(launch.kernel.addr()) {
        Some(entry) => entry.count(largest),
        None => watch::first_launch(&describe(), largest),
    }
    let (stream, per_thread) = (launch.stream.addr(), FUNCTIONS[launch.through.0].per_thread);
    late::record(launch.kernel.addr(), launch.grid, stream, per_thread);
    if watch::REQUESTS.load(Ordering::Relaxed) != 0 {
        watch::attend(&describe());
    }
}
