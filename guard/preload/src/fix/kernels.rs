//! Notes what modules, libraries and kernels are, in the entries of their handles.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::CStr;

use crate::abi::Handle;
use crate::fix::known::{Kernel, Known, Loaded, Reason};
use crate::table::{self, Entry};

/// Images of which is kept what they are: reports stay in memory as long as the process.
const MAX_IMAGES: usize = 65_536;
const TOO_MANY: &str = "the process had loaded 65536 images before its module";
static IMAGES: AtomicUsize = AtomicUsize::new(0);

/// Whether another image can be rewritten.
pub(crate) fn check_count() -> Result<(), Reason> {
    match IMAGES.load(Ordering::Relaxed) < MAX_IMAGES {
        true => Ok(()),
        false => Err(TOO_MANY.into()),
    }
}

/// Notes that `handle` is a module or library of this image.
pub(crate) fn loaded(handle: Handle, loaded: Loaded) {
    static ONE_TOO_MANY: Loaded = Loaded::Kept(Reason::Borrowed(TOO_MANY));
    let Some(entry) = table::find_or_insert(handle.addr()) else { return };
    let loaded = match IMAGES.fetch_add(1, Ordering::Relaxed) < MAX_IMAGES {
        true => &*Box::leak(Box::new(loaded)),
        false => {
            IMAGES.fetch_sub(1, Ordering::Relaxed);
            &ONE_TOO_MANY
        }
    };
    note_container(entry, loaded);
}

/// Notes that the lookup `found_by` found the kernel `name` of a module or library. Programs look a kernel
/// up again for each launch: what is known already stays.
pub(crate) fn found(kernel: Handle, container: Handle, name: &CStr, found_by: (usize, usize)) {
    let loaded = known(container).and_then(Known::loaded);
    note_kernel(kernel, Kernel::new(name, container, found_by, loaded));
}

/// Notes that `found` is in the current context what `of` is in all.
pub(crate) fn found_in_context(found: Handle, of: Handle) {
    match known(of) {
        Some(Known::Container(loaded)) => {
            if let Some(entry) = table::find_or_insert(found.addr()) {
                note_container(entry, loaded);
            }
        }
        Some(Known::Kernel(Kernel { name, container, found_by, loaded, .. })) => {
            note_kernel(found, Kernel::new(name, *container, *found_by, *loaded));
        }
        None => {}
    }
}

fn known(handle: Handle) -> Option<&'static Known> {
    table::find(handle.addr()).and_then(Entry::known)
}

fn note_container(entry: &Entry, loaded: &'static Loaded) {
    let same = entry.known().and_then(Known::loaded).is_some_and(|old| core::ptr::eq(old, loaded));
    if !same {
        entry.set_known(Known::Container(loaded));
    }
}

fn note_kernel(handle: Handle, kernel: Kernel) {
    let Some(entry) = table::find_or_insert(handle.addr()) else { return };
    entry.set_name(kernel.name.to_bytes());
    let old = entry.known().and_then(Known::kernel);
    if old.is_some_and(|old| old.is_of(&kernel)) {
        return;
    }
    // The handle of an unloaded kernel; of the same name, its launches are counted together.
    kernel.fixed.store(entry.known().map_or(0, Known::fixed), Ordering::Relaxed);
    entry.set_known(Known::Kernel(kernel));
}
