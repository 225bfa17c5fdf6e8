//! The launch functions of a shared CUDA runtime, which may refuse a launch without a call of the driver: each runtime a
//! zero dimension, and those before CUDA 13 all grids and blocks beyond the limits of device and kernel.

use core::ffi::{CStr, c_uint, c_void};
use core::{mem, ptr};

use gridguard::abi::{LaunchAttribute, LaunchConfig};

use crate::driver::abi::{Handle, INVALID_FOR_RUNTIME, SUCCESS, Status};
use crate::driver::functions::{self, FUNCTIONS, replacements};
use crate::driver::request::{Launch, configured};
use crate::driver::written;
use crate::hook::{carried, outcome};
use crate::process::flag::Flag;
use crate::process::{self, elf, guarded, stack};
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
        if carried::is_wanted(grid.0)
            && let Some(status) = carried::carry((grid.0, shared_bytes), small, call)
        {
            return status;
        }
        watched(&call, function, || {
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
        if carried::is_wanted(grid.0)
            && let Some(status) = carried::carry((grid.0, shared_bytes), small, call)
        {
            return status;
        }
        watched(&call, function, || {
            let shared_bytes = c_uint::try_from(shared_bytes).unwrap_or(c_uint::MAX);
            let (grid, block) = (grid.0, block.0);
            let config =
                LaunchConfig { grid, block, shared_bytes, stream, attributes, attribute_count };
            // SAFETY: the caller states the number of attributes; they are the driver's.
            unsafe { configured(through, function, &config) }
        })
    }
}

/// Makes a launch, and explains it if the runtime refused it without a call of the driver.
#[inline(always)]
fn watched(
    call: &dyn Fn() -> Status,
    function: *mut c_void,
    describe: impl Fn() -> Launch,
) -> Status {
    Flag::Refused.replace(false);
    let status = call();
    if status != SUCCESS && !Flag::Refused.replace(false) {
        failed(call, status, function, &describe);
    }
    status
}

/// Explains a launch that failed in the runtime.
#[cold]
fn failed(
    call: &dyn Fn() -> Status,
    status: Status,
    function: *mut c_void,
    describe: &dyn Fn() -> Launch,
) {
    if !INVALID_FOR_RUNTIME.iter().any(|(code, _)| *code == status) {
        return;
    }
    let mut asked = Asked::default();
    guarded::run(|| {
        let launch = describe();
        let (kernel, host) = asked.name(launch.through, function);
        outcome::refused(&Launch { kernel, host, ..launch }, status, None);
    });
    if asked.failed {
        // A question that fails is the runtime's last error, which the program may ask for. Refused again,
        // the launch is.
        call();
    }
}

/// Queries of the runtime.
#[derive(Default)]
struct Asked {
    /// Whether a query failed.
    failed: bool,
}

impl Asked {
    /// The handle of the launch's kernel, with a name in the table: the driver's, if the runtime tells. Else the host
    /// function, and true.
    fn name(&mut self, through: (usize, usize), function: *mut c_void) -> (Handle, bool) {
        let is_handle = FUNCTIONS[through.0].symbol.to_bytes().starts_with(b"__");
        let asks = [c"cudaGetKernel", c"cudaGetFuncBySymbol"];
        // A `CUfunction` up to CUDA 11, then a `CUkernel`.
        let mut known = || self.ask(through, &asks, function, ptr::null_mut());
        let known = if is_handle { None } else { known() };
        let known = known.filter(|kernel: &Handle| !kernel.is_null());
        let (kernel, host) = (known.unwrap_or(function), known.is_none() && !is_handle);
        if let Some(entry) = table::find_or_insert(kernel.addr())
            && !entry.has_kernel()
        {
            let name = self.ask(through, &[c"cudaFuncGetName"], function, ptr::null());
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

    /// The result of the first of these queries that the runtime has, for a function or kernel.
    fn ask<T>(
        &mut self,
        through: (usize, usize),
        names: &[&CStr],
        function: *mut c_void,
        initial: T,
    ) -> Option<T> {
        type Ask<T> = unsafe extern "C-unwind" fn(*mut T, *const c_void) -> Status;
        let ask = names.iter().map(|name| beside(through, name)).find(|ask| !ask.is_null())?;
        // SAFETY: NVIDIA's header declares this signature for each query.
        let ask = unsafe { mem::transmute::<*mut c_void, Ask<T>>(ask) };
        // SAFETY: the program is launching the function just now; the pointer is to a live result.
        let found = written(initial, |into| Some(unsafe { ask(into, function) }));
        self.failed |= found.is_none();
        found
    }
}

/// A function of the runtime that launches through this function and slot go to.
fn beside(through: (usize, usize), name: &CStr) -> *mut c_void {
    elf::beside(functions::original_address(through), name)
}

const _: () = assert!(size_of::<RuntimeConfig>() == 56 && size_of::<Size>() == 12);
