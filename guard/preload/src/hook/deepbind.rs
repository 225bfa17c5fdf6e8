//! Tells which objects this library cannot watch. An object that was opened with `RTLD_DEEPBIND` takes `dlsym` from the C
//! library, and so gets the functions of the driver.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::process::{self, elf, guarded};

/// The process that loaded this library.
static LOADED_IN: AtomicU32 = AtomicU32::new(0);

/// Registers the note for the end of this process, but not for its children.
pub(crate) fn begin() {
    LOADED_IN.store(std::process::id(), Ordering::Relaxed);
    process::register_end(at_exit);
}

extern "C" fn at_exit() {
    guarded::run(|| {
        if LOADED_IN.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        for name in unwatched() {
            process::say(&format!(
                "gridguard: {name} was opened with RTLD_DEEPBIND: launches by CUDA functions that it has looked up are \
                 not seen\n"
            ));
        }
    });
}

/// The objects that have bound the C library's `dlsym`, if a driver is loaded. The driver itself may be bound so.
fn unwatched() -> Vec<String> {
    let (real, mut has_driver) = (elf::next(c"dlsym"), false);
    elf::visit(|object| {
        has_driver = is_driver(object);
        has_driver
    });
    let mut found = Vec::new();
    if real.is_null() || !has_driver {
        return found;
    }
    elf::visit(|object| {
        // SAFETY: the loader keeps the object loaded.
        let binds = |tables: elf::Tables| unsafe { tables.has_bound(c"dlsym", real) };
        if !is_driver(object) && !object.is_own() && object.tables().is_some_and(binds) {
            let path = object.path().map(CStr::to_string_lossy).unwrap_or_default();
            found.push(path.rsplit('/').next().unwrap_or_default().to_owned());
        }
        false
    });
    found.retain(|name| !name.is_empty());
    found
}

fn is_driver(object: &elf::Object<'_>) -> bool {
    !object.find(c"cuInit").is_null()
}
