//! The launch functions of the driver: each calls its original and counts the launch.

use core::ffi::{c_uint, c_void};
use core::ptr;

use gridguard::abi::LaunchConfig;

use crate::driver::abi::{Handle, INVALID_VALUE, SUCCESS, Status};
use crate::driver::functions::{self, FUNCTIONS, replacements};
use crate::driver::request::{Launch, NO_ATTRIBUTES, configured, is_oversized};
use crate::fix::arguments::RawArguments;
use crate::fix::opt_in;
use crate::fix::relaunch::{SendLaunch, in_parts};
use crate::hook::relay::{self, RelayedLaunch};
use crate::hook::{outcome, session};
use crate::process;
use crate::process::flag::Flag;
use crate::watch::{recent, table};

replacements! {
    /// `cuLaunchKernel`, and `cuLaunchCooperativeKernel`, which has no options: what is read of them belongs to the caller's
    /// frame, and is not used.
    kernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    )
    |through, _call, original| {
        let is_cooperative = FUNCTIONS[H].name == b"cuLaunchCooperativeKernel";
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let config = LaunchConfig { grid, block, shared_bytes, stream, ..NO_ATTRIBUTES };
        let extra = if is_cooperative { ptr::null_mut() } else { extra };
        let passed = RawArguments { parameters, extra };
        watched(through, (function, is_cooperative), config, passed, move |config, kernel, passed| {
            let &LaunchConfig { grid: [x, y, z], block: [block_x, block_y, block_z], .. } = config;
            let &LaunchConfig { shared_bytes, stream, .. } = config;
            let RawArguments { parameters, extra } = passed;
            // SAFETY: the caller's own arguments, or a form of the kernel with its arguments.
            unsafe {
                original(
                    kernel, x, y, z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra,
                )
            }
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
        let passed = RawArguments { parameters, extra };
        watched(through, (function, false), *config, passed, move |config, kernel, passed| {
            // SAFETY: the caller's own arguments, or a form of the kernel with its arguments.
            unsafe { original(config, kernel, passed.parameters, passed.extra) }
        })
    }
}

/// Calls an original. If it is the outermost call, returns what `then` makes of the result.
#[inline]
pub(crate) fn outermost(call: impl Fn() -> Status, then: impl FnOnce(Status) -> Status) -> Status {
    functions::once(Flag::Launch, &call, || then(call()))
}

/// Makes a launch by `send`, and counts it if this is the outermost call. Only the cold paths take the address of the
/// configuration, so that it stays in registers.
#[inline(always)]
fn watched(
    through: (usize, usize),
    (function, is_cooperative): (Handle, bool),
    mut config: LaunchConfig,
    passed: RawArguments,
    send: impl Fn(&LaunchConfig, Handle, RawArguments) -> Status,
) -> Status {
    let relayed = relay::take(config.grid, config.shared_bytes);
    if let Some(RelayedLaunch { grid, shared_bytes, .. }) = relayed {
        (config.grid, config.shared_bytes) = (grid, shared_bytes);
    }
    let call = || send(&config, function, passed);
    let describe = || {
        // SAFETY: a live configuration, as the driver demands of its caller.
        let launch = unsafe { configured(through, function, &config) };
        Launch { cooperative: launch.cooperative | is_cooperative, ..launch }
    };
    functions::once(Flag::Launch, call, || {
        if is_oversized(config.grid) {
            return oversized(describe(), config, passed, &send);
        }
        // The prefetched lines arrive while the driver works.
        table::prefetch(function.addr());
        recent::prefetch();
        let status = call();
        if status != SUCCESS {
            return refused(describe(), status, &call, Some(passed));
        }
        match relayed {
            None => accepted(describe, Some(passed)),
            Some(_) => outcome::fixed(&describe(), passed, status),
        }
        status
    })
}

/// Makes a refused launch by `again` if its kernel lacks an opt-in, or else explains it.
#[cold]
pub(crate) fn refused(
    launch: Launch,
    status: Status,
    again: &dyn Fn() -> Status,
    passed: Option<RawArguments>,
) -> Status {
    if opt_in::repaired(&launch, status, again) {
        accepted(|| launch, passed);
        return SUCCESS;
    }
    outcome::refused(&launch, status, None);
    status
}

/// Makes an oversized launch: in parts if `--fix` is on and it is possible.
#[cold]
fn oversized(
    launch: Launch,
    config: LaunchConfig,
    passed: RawArguments,
    send: SendLaunch<'_>,
) -> Status {
    let mut reason = None;
    if process::options().fix {
        let set = opt_in::opt_in(&launch);
        // SAFETY: the program makes this launch, so its configuration, kernel and arguments are valid.
        let launched = unsafe { in_parts(&launch, &config, passed, send) };
        opt_in::settle(set, launched == Ok(SUCCESS));
        match launched {
            Ok(status) => {
                outcome::fixed(&launch, passed, status);
                return status;
            }
            Err(why) => reason = Some(why),
        }
    }
    let status =
        if relay::is_taken() { INVALID_VALUE } else { send(&config, launch.kernel, passed) };
    match status {
        SUCCESS => accepted(|| launch, Some(passed)),
        _ => outcome::refused(&launch, status, reason),
    }
    status
}

/// Counts an accepted launch. `passed` has its arguments, unless it is a node of a graph. The slow paths call
/// `describe` again, so the hot path keeps the launch in registers.
#[inline(always)]
pub(crate) fn accepted(describe: impl Fn() -> Launch, passed: Option<RawArguments>) {
    let launch = describe();
    match table::find(launch.kernel.addr()) {
        Some(entry) if entry.has_kernel() => entry.counters.count(launch.sizes()),
        _ => outcome::first_launch(&describe()),
    }
    // A node is not launched yet.
    if !launch.node {
        let (stream, per_thread) = (launch.stream.addr(), FUNCTIONS[launch.through.0].per_thread);
        recent::record(launch.kernel.addr(), launch.grid, stream, per_thread);
    }
    session::serve(describe, passed);
}
