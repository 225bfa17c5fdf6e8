//! The functions that look up kernels, modules and functions by name or by handle.

use core::ffi::{CStr, c_char};

use crate::driver::Driver;
use crate::driver::abi::{Handle, SUCCESS};
use crate::driver::functions::replacements;
use crate::fix::kernels;
use crate::hook::logged;
use crate::process::{self, guarded};
use crate::refuse::driver_log;
use crate::watch::{kernel, table};

replacements! {
    /// `cuModuleGetFunction` and `cuLibraryGetKernel`. The driver may reuse the handle of an unloaded kernel.
    kernel(kernel: *mut Handle, container: Handle, name: *const c_char)
    |through, call| {
        let status = call();
        if status == SUCCESS && !kernel.is_null() && !name.is_null() {
            // SAFETY: the successful lookup wrote the handle and accepted the name.
            let (handle, name) = unsafe { (*kernel, CStr::from_ptr(name)) };
            guarded::run(|| {
                let driver = Driver::of(through);
                driver_log::listen(driver, logged::refused);
                named(handle, container, name, || driver.has_names());
                if process::options().keeps_ptx() {
                    // The report at the end needs the limits, when the driver may be gone.
                    let _ = driver.device_limits();
                    kernels::found(handle, container, name, through);
                }
            });
        }
        status
    }

    /// `cuKernelGetFunction` and `cuLibraryGetModule`: the function of a kernel, the module of a library, in the
    /// current context.
    in_context(found: *mut Handle, of: Handle)
    |_through, call| {
        let status = call();
        if status == SUCCESS && !found.is_null() {
            // SAFETY: the successful lookup wrote the handle.
            let found = unsafe { *found };
            guarded::run(|| {
                table::found_in_context(found.addr(), of.addr());
                if process::options().keeps_ptx() {
                    kernels::found_in_context(found, of);
                }
            });
        }
        status
    }
}

/// Records the name, unless the driver can be asked for it at the first launch.
fn named(handle: Handle, container: Handle, name: &CStr, can_wait: impl FnOnce() -> bool) {
    let entry = match table::find(handle.addr()) {
        None if can_wait() => None,
        None => table::find_or_insert(handle.addr()),
        known => known,
    };
    if let Some(entry) = entry {
        let image = table::image_of(container.addr());
        entry.set_kernel(kernel::of(name.to_bytes(), image), container.addr());
    }
}
