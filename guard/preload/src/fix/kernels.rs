//! Records modules, libraries and kernels in the entries of their handles.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;
use std::ffi::CStr;

use gridguard::ptx::EntryReport;

use crate::driver::abi::Handle;
use crate::fix::store;
use crate::watch::handle_record::{HandleRecord, Kernel, LoadedImage, Origin, Reason};
use crate::watch::kernel;
use crate::watch::slot_cache::{SlotCache, hash_of};
use crate::watch::table::{self, Entry};

/// The most images and looked-up kernels that are recorded. They stay in memory until the process ends.
const MAX_IMAGES: usize = 65_536;
const MAX_LOOKED_UP: usize = 1 << 18;
const TOO_MANY: &str = "the process had loaded 65536 images before its module";
static IMAGES: SlotCache<HandleRecord, { 1 << 17 }, MAX_IMAGES> = SlotCache::new();
static LOOKED_UP: AtomicUsize = AtomicUsize::new(0);

/// The record of a rewritten image, unless there are too many images. Images with equal hashes share one.
pub(crate) fn rewritten(
    hash: u64,
    entries: HashMap<String, EntryReport>,
) -> Result<&'static HandleRecord, Reason> {
    IMAGES.get(hash, || HandleRecord::Container(LoadedImage::Ptx(entries))).ok_or(TOO_MANY.into())
}

/// The record of machine code, unless there are too many images.
pub(crate) fn machine(origin: Origin) -> Result<&'static HandleRecord, Reason> {
    let hash = hash_of(&origin);
    let make = move || {
        let fits = match &origin {
            Origin::Copied(texts) => store::reserve(
                texts.iter().filter_map(|(_, text)| Some(text.as_ref().ok()?.len())).sum(),
            ),
            _ => true,
        };
        let loaded = if fits {
            LoadedImage::Machine(origin)
        } else {
            LoadedImage::Unchanged(store::NO_ROOM.into())
        };
        HandleRecord::Container(loaded)
    };
    IMAGES.get(hash, make).ok_or(TOO_MANY.into())
}

/// Notes that `handle` is a module or library of this image, or why its image is not rewritten.
pub(crate) fn loaded(handle: Handle, image: Result<&'static HandleRecord, Reason>) {
    static ONE_TOO_MANY: HandleRecord =
        HandleRecord::Container(LoadedImage::Unchanged(Reason::Borrowed(TOO_MANY)));
    if let Some(entry) = table::find(handle.addr()) {
        let image = image.unwrap_or_else(|reason| {
            let hash = hash_of(reason.as_bytes());
            IMAGES
                .get(hash, || HandleRecord::Container(LoadedImage::Unchanged(reason)))
                .unwrap_or(&ONE_TOO_MANY)
        });
        entry.set_record(Some(image));
    }
}

/// Notes that the lookup `found_by` found the kernel `name` of a module or library. Programs may look up
/// a kernel before each launch: a known one is kept.
pub(crate) fn found(kernel: Handle, container: Handle, name: &CStr, found_by: (usize, usize)) {
    let loaded = record_of(container).and_then(HandleRecord::loaded);
    let container = (container.addr(), table::load_of(container.addr()));
    note_kernel(kernel, Kernel::new(name, container, found_by, loaded));
}

/// Records that the function `found` is the kernel `of` in the current context.
pub(crate) fn found_in_context(found: Handle, of: Handle) {
    match record_of(of) {
        Some(container @ HandleRecord::Container(_)) => {
            if let Some(entry) = table::find_or_insert(found.addr()) {
                entry.set_record(Some(container));
            }
        }
        Some(HandleRecord::Kernel(Kernel { name, container, load, found_by, loaded, .. })) => {
            note_kernel(found, Kernel::new(name, (*container, *load), *found_by, *loaded));
        }
        None => {}
    }
}

fn record_of(handle: Handle) -> Option<&'static HandleRecord> {
    table::find(handle.addr()).and_then(Entry::record)
}

fn note_kernel(handle: Handle, kernel: Kernel) {
    let Some(entry) = table::find_or_insert(handle.addr()) else { return };
    let container = kernel.container;
    let image = table::image_of(container);
    entry.set_kernel(kernel::of(kernel.name.to_bytes(), image), container);
    let old = entry.record().and_then(HandleRecord::kernel);
    if old.is_some_and(|old| old.is_of(&kernel)) {
        return;
    }
    let is_room = LOOKED_UP.fetch_add(1, Ordering::Relaxed) < MAX_LOOKED_UP;
    if !is_room {
        LOOKED_UP.fetch_sub(1, Ordering::Relaxed);
    }
    entry.set_record(is_room.then(|| &*Box::leak(Box::new(HandleRecord::Kernel(kernel)))));
}
