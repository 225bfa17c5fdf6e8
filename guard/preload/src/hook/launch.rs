//! The launch functions of the driver: each calls its original and counts the launch.

use core::ffi::{c_uint, c_void};

use gridguard::abi::LaunchConfig;

use crate::driver::abi::{Handle, INVALID_VALUE, SUCCESS, Status};
use crate::driver::functions::{self, FUNCTIONS, replacements};
use crate::driver::request::{Launch, attributes, configured, is_oversized};
use crate::fix::arguments::RawArguments;
use crate::fix::relaunch::{Part, RelaunchRequest};
use crate::hook::relay::{self, RelayedLaunch};
use crate::hook::{outcome, session};
use crate::process;
use crate::process::flag::Flag;
use crate::watch::{recent, table};

replacements! {
    /// `cuLaunchKernel`.
    kernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    )
    |through, call, original| {
        if let Some(RelayedLaunch { grid: [x, y, z], shared_bytes }) = relay::take(shared_bytes) {
            // SAFETY: the caller's own arguments, with the grid and the memory that the program asked for.
            return unsafe {
                kernel::<H, S>(
                    function, x, y, z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra,
                )
            };
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let describe = || Launch::plain(through, function, grid, block, (shared_bytes, stream));
        watched(grid, RawArguments { parameters, extra }, call, describe, |launch| {
            let part = move |part: &Part<'_>| {
                let &Part { kernel, grid: [x, y, z], passed: RawArguments { parameters, extra }, .. } = part;
                let Launch { block: [block_x, block_y, block_z], shared_bytes, stream, .. } = launch;
                // SAFETY: the caller's own arguments, or a form of the kernel with its arguments.
                unsafe {
                    original(
                        kernel, x, y, z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                        extra,
                    )
                }
            };
            let (passed, Launch { kernel, grid, .. }) = (RawArguments { parameters, extra }, launch);
            let whole = move || part(&Part { kernel, grid, passed, attributes: &[] });
            oversized(&RelaunchRequest { launch, passed, attributes: &[], part: &part, whole: &whole })
        })
    }

    /// `cuLaunchCooperativeKernel`.
    cooperative(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle,
        parameters: *mut *mut c_void,
    )
    |through, call, original| {
        if let Some(RelayedLaunch { grid: [x, y, z], shared_bytes }) = relay::take(shared_bytes) {
            // SAFETY: the caller's own arguments, with the grid and the memory that the program asked for.
            return unsafe {
                cooperative::<H, S>(
                    function, x, y, z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                )
            };
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let describe = || {
            let launch = Launch::plain(through, function, grid, block, (shared_bytes, stream));
            Launch { cooperative: true, ..launch }
        };
        let passed = RawArguments { parameters, extra: core::ptr::null_mut() };
        watched(grid, passed, call, describe, |launch| {
            // SAFETY: the caller's own arguments.
            let whole = move || unsafe {
                original(
                    function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                    parameters,
                )
            };
            // A cooperative launch cannot be made in parts.
            oversized(&RelaunchRequest { launch, passed, attributes: &[], part: &|_| whole(), whole: &whole })
        })
    }

    /// `cuLaunchKernelEx`.
    kernel_ex(
        config: *const LaunchConfig, function: Handle, parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    )
    |through, call, original| {
        // SAFETY: null or a live configuration, as the driver demands of its caller.
        let Some(config) = (unsafe { config.as_ref() }) else { return call() };
        if let Some(RelayedLaunch { grid, shared_bytes }) = relay::take(config.shared_bytes) {
            let config = LaunchConfig { grid, shared_bytes, ..*config };
            // SAFETY: the caller's own arguments, with the grid and the memory that the program asked for.
            return unsafe { kernel_ex::<H, S>(&raw const config, function, parameters, extra) };
        }
        // SAFETY: a live configuration, as the driver demands of its caller.
        let describe = || unsafe { configured(through, function, config) };
        watched(config.grid, RawArguments { parameters, extra }, call, describe, |launch| {
            let part = |part: &Part<'_>| {
                let &Part { kernel, grid, passed: RawArguments { parameters, extra }, attributes } = part;
                let attribute_count = c_uint::try_from(attributes.len()).unwrap_or(0);
                let attributes = attributes.as_ptr();
                let config = LaunchConfig { grid, attributes, attribute_count, ..*config };
                // SAFETY: the caller's own arguments, or a form of the kernel with its arguments.
                unsafe { original(&raw const config, kernel, parameters, extra) }
            };
            // SAFETY: a live configuration, as the driver demands of its caller.
            let attributes = unsafe { attributes(config) };
            let passed = RawArguments { parameters, extra };
            oversized(&RelaunchRequest { launch, passed, attributes, part: &part, whole: &call })
        })
    }
}

/// Calls an original. If it is the outermost call, then calls `then` with the result.
#[inline]
pub(crate) fn outermost(call: impl Fn() -> Status, then: impl FnOnce(Status)) -> Status {
    functions::once(Flag::Launch, &call, || {
        let status = call();
        then(status);
        status
    })
}

/// Calls the original, and counts the launch of `describe` if this is the outermost call. Passes an oversized grid
/// to `oversized`.
#[inline(always)]
fn watched(
    grid: [c_uint; 3],
    passed: RawArguments,
    call: impl Fn() -> Status,
    describe: impl Fn() -> Launch,
    oversized: impl FnOnce(Launch) -> Status,
) -> Status {
    functions::once(Flag::Launch, &call, || {
        if is_oversized(grid) {
            return oversized(describe());
        }
        // The prefetched lines arrive while the driver works.
        table::prefetch(describe().kernel.addr());
        recent::prefetch();
        let status = call();
        if status == SUCCESS {
            accepted(describe, Some(passed));
        } else {
            outcome::refused(&describe(), status, None);
        }
        status
    })
}

/// Makes an oversized launch: in parts if `--fix` is on and it is possible.
#[cold]
fn oversized(request: &RelaunchRequest<'_>) -> Status {
    let launch = &request.launch;
    let mut reason = None;
    if process::options().fix {
        // SAFETY: the program makes this launch, so its kernel and arguments are valid.
        match unsafe { request.in_parts() } {
            Ok(status) => {
                outcome::fixed(launch, request.passed, status);
                return status;
            }
            Err(why) => reason = Some(why),
        }
    }
    let status = if relay::is_taken() { INVALID_VALUE } else { (request.whole)() };
    match status {
        SUCCESS => accepted(|| *launch, Some(request.passed)),
        _ => outcome::refused(launch, status, reason),
    }
    status
}

/// Counts an accepted launch. `passed` has its arguments, unless it is a node of a graph. The slow paths call
/// `describe` again, so the hot path keeps the launch in registers.
#[inline(always)]
pub(crate) fn accepted(describe: impl Fn() -> Launch, passed: Option<RawArguments>) {
    let launch = describe();
    let largest = launch.largest();
    match table::find(launch.kernel.addr()) {
        Some(entry) if entry.has_kernel() => entry.counters.count(largest),
        _ => outcome::first_launch(&describe(), largest),
    }
    // A node is not launched yet.
    if !launch.node {
        let (stream, per_thread) = (launch.stream.addr(), FUNCTIONS[launch.through.0].per_thread);
        recent::record(launch.kernel.addr(), launch.grid, stream, per_thread);
    }
    session::serve(describe, passed);
}
