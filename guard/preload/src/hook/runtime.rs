//! The launch functions of a shared CUDA runtime. Runtimes before CUDA 13 refuse zero dimensions, and grids and blocks
//! beyond the limits of the device, without a call of the driver.

use core::cell::Cell;
use core::ffi::{CStr, c_uint, c_void};
use core::ptr;

use gridguard::abi::{LaunchAttribute, LaunchConfig};

use crate::driver::abi::{Handle, INVALID_CONFIGURATION, INVALID_FOR_RUNTIME, SUCCESS, Status};
use crate::driver::functions::{self, FUNCTIONS, replacements};
use crate::driver::request::{Launch, configured};
use crate::driver::written;
use crate::hook::{outcome, relay};
use crate::process::flag::Flag;
use crate::process::{self, guarded, stack};
use crate::watch::{kernel, table};

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size([c_uint; 3]);

/// `cudaLaunchConfig_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RuntimeConfig {
    grid: Size,
    block: Size,
    shared_bytes: usize,
    stream: Handle,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

replacements! {
    /// `cudaLaunchKernel` and `cudaLaunchCooperativeKernel`, with a host function or a kernel, and
    /// `__cudaLaunchKernel`, which compilers call for `<<<...>>>`, with a kernel.
    kernel(
        function: *mut c_void, grid: Size, block: Size, arguments: *mut *mut c_void, shared_bytes: usize,
        stream: Handle,
    )
    |through, call, original| {
        // SAFETY: the caller's own arguments, with a grid that the driver's function replaces.
        let small = |grid, bytes| unsafe {
            original(function, Size(grid), block, arguments, bytes, stream)
        };
        watched((grid.0, shared_bytes), &call, small, function, || {
            let shared_bytes = c_uint::try_from(shared_bytes).unwrap_or(c_uint::MAX);
            let name = FUNCTIONS[H].symbol.to_bytes();
            let cooperative = name.starts_with(b"cudaLaunchCooperative");
            let launch = Launch::plain(through, function, grid.0, block.0, (shared_bytes, stream));
            Launch { cooperative, ..launch }
        })
    }

    /// `cudaLaunchKernelExC`.
    kernel_ex(config: *const RuntimeConfig, function: *mut c_void, arguments: *mut *mut c_void)
    |through, call, original| {
        // SAFETY: null or a live configuration, as the runtime demands of its caller.
        let Some(config) = (unsafe { config.as_ref() }) else { return call() };
        let &RuntimeConfig { grid, block, shared_bytes, stream, attributes, attribute_count } = config;
        let small = |grid, shared_bytes| {
            let config = RuntimeConfig { grid: Size(grid), shared_bytes, ..*config };
            // SAFETY: the caller's own arguments, with a grid that the driver's function replaces.
            unsafe { original(&raw const config, function, arguments) }
        };
        watched((grid.0, shared_bytes), &call, small, function, || {
            let shared_bytes = c_uint::try_from(shared_bytes).unwrap_or(c_uint::MAX);
            let (grid, block) = (grid.0, block.0);
            let config =
                LaunchConfig { grid, block, shared_bytes, stream, attributes, attribute_count };
            // SAFETY: the caller states the number of attributes; they are the driver's.
            unsafe { configured(through, function, &config) }
        })
    }
}

/// Makes a launch. With `--fix`, an oversized launch is made by `small`, if the runtime then calls the driver. Explains
/// a launch that the runtime refused without a call of the driver.
#[inline(always)]
fn watched(
    (grid, shared_bytes): ([c_uint; 3], usize),
    call: &dyn Fn() -> Status,
    small: impl Fn([c_uint; 3], usize) -> Status,
    function: *mut c_void,
    describe: impl Fn() -> Launch,
) -> Status {
    if relay::applies_to(grid)
        && let Some(status) = relay::launch((grid, shared_bytes), &small, call)
    {
        return status;
    }
    Flag::Refused.replace(false);
    let status = call();
    if status != SUCCESS && !Flag::Refused.replace(false) {
        failed(&|| small([0; 3], shared_bytes), status, function, &describe);
    }
    status
}

/// Explains a launch that failed in the runtime. `empty` makes the launch with a grid of zeros.
#[cold]
fn failed(
    empty: &dyn Fn() -> Status,
    status: Status,
    function: *mut c_void,
    describe: &dyn Fn() -> Launch,
) {
    if !INVALID_FOR_RUNTIME.iter().any(|(code, _)| *code == status) {
        return;
    }
    let has_failed = Cell::new(false);
    guarded::run(|| {
        let launch = describe();
        let (kernel, host) = name(launch.through, function, &has_failed);
        outcome::refused(&Launch { kernel, host, ..launch }, status, None);
    });
    if has_failed.get() && status == INVALID_CONFIGURATION {
        // Our failed query replaced the program's last CUDA error. An empty grid sets it again, and cannot run, while the
        // limits that refused the launch itself may have been raised. Another error is not restored.
        functions::once(Flag::Launch, empty, empty);
    }
}

/// The driver's handle of the launch's kernel, with its name in the table. If the runtime does not tell the handle,
/// the host function and `true`. Sets `has_failed` if a query of the runtime fails.
fn name(through: (usize, usize), function: *mut c_void, has_failed: &Cell<bool>) -> (Handle, bool) {
    let takes_handle = FUNCTIONS[through.0].symbol.to_bytes().starts_with(b"__");
    // Early runtimes of CUDA 12 return host functions as handles.
    let is_handle = takes_handle && stack::object_path(function).is_none();
    let is_other = |kernel: &Handle| !kernel.is_null() && *kernel != function;
    let query = |name| ask(through, name, function, ptr::null_mut(), has_failed).filter(is_other);
    // A `CUkernel`, or else a `CUfunction`.
    let known = || query(c"cudaGetKernel").or_else(|| query(c"cudaGetFuncBySymbol"));
    let known = if is_handle { None } else { known() };
    let (kernel, host) = (known.unwrap_or(function), known.is_none() && !is_handle);
    if let Some(entry) = table::find_or_insert(kernel.addr())
        && !entry.has_kernel()
    {
        let name = ask(through, c"cudaFuncGetName", function, ptr::null(), has_failed);
        // SAFETY: a string that lives as long as the kernel. It is copied at once.
        let kernel = match name.and_then(|name| unsafe { process::text(name) }) {
            Some(name) => Some(kernel::of(name.to_bytes(), 0)),
            // Else the driver tells.
            None => host.then(|| kernel::of(stack::place(function).as_bytes(), 0)),
        };
        kernel.inspect(|kernel| entry.set_kernel(kernel, 0));
    }
    (kernel, host)
}

/// The result of a query of the runtime for a function or kernel, if the runtime has it.
fn ask<T>(
    through: (usize, usize),
    name: &CStr,
    function: *mut c_void,
    initial: T,
    has_failed: &Cell<bool>,
) -> Option<T> {
    type Ask<T> = unsafe extern "C-unwind" fn(*mut T, *const c_void) -> Status;
    // SAFETY: NVIDIA's header declares this signature for each query.
    let ask = unsafe { functions::beside::<Ask<T>>(through, name) }?;
    // SAFETY: the program is launching the function just now; the pointer is to a live result.
    let found = written(initial, |into| Some(unsafe { ask(into, function) }));
    has_failed.set(has_failed.get() | found.is_none());
    found
}

const _: () = assert!(size_of::<RuntimeConfig>() == 56 && size_of::<Size>() == 12);
