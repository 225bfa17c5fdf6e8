//! Names what this library cannot watch:
//!
//! - An object that was opened with `RTLD_DEEPBIND` takes `dlsym` from the C library, and so gets the functions of the
//!   driver.
//! - A CUDA runtime before 13 compares launches with the limits of the device itself. If it is linked statically, its
//!   launch functions cannot be replaced.
//! - A function of a newer CUDA, or of a further driver library, is not intercepted.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::process::{self, elf, guarded, stack};
use crate::watch::slot_cache::{SlotCache, hash_of, place_of};

/// The process that loaded this library.
static LOADED_IN: AtomicU32 = AtomicU32::new(0);
/// The files with an old runtime, by name.
static WITH_RUNTIME: SlotCache<String, { 1 << 6 }, 32> = SlotCache::new();

/// Runtimes up to CUDA 12 ask the driver for this function when they start.
const ASKED_BY_OLD: &[u8] = b"cuLaunchCooperativeKernelMultiDevice";
/// How the names of NVIDIA's libraries begin. Their launches are legal. The names of shared runtimes, which are
/// watched, begin so too.
const OF_NVIDIA: [&str; 4] = ["libcu", "libnccl", "libnpp", "libnv"];

/// Registers the note that is printed at the end of this process, but not of its children.
pub(crate) fn begin() {
    LOADED_IN.store(std::process::id(), Ordering::Relaxed);
    process::register_end(at_exit);
}

/// Notes the object that asks the driver for the function `name`, if only an old runtime does.
#[inline]
pub(crate) fn asked_for(name: &[u8]) {
    if name == ASKED_BY_OLD {
        guarded::run(note_caller);
    }
}

#[cold]
fn note_caller() {
    let Some(caller) = stack::caller() else { return };
    let name = caller.library_name();
    if !OF_NVIDIA.iter().any(|start| name.starts_with(start)) {
        WITH_RUNTIME.get(hash_of(name), || name.to_owned());
    }
}

extern "C" fn at_exit() {
    guarded::run(|| {
        if LOADED_IN.load(Ordering::Relaxed) == std::process::id() {
            reasons().iter().for_each(|why| process::say(&format!("gridguard: {why}\n")));
        }
    });
}

/// What of the process is not watched, and why.
pub(crate) fn reasons() -> Vec<String> {
    let bound = bound_deeply().into_iter().map(|name| {
        format!(
            "{name} was opened with RTLD_DEEPBIND: launches by CUDA functions that it has looked up are not seen"
        )
    });
    let runtimes = WITH_RUNTIME.all().map(|name| {
        format!(
            "{name} contains a CUDA runtime before 13. Launches that this runtime refuses are not fixed, and before 12.9 \
             not seen: link it with -cudart shared, or build it with CUDA 13"
        )
    });
    let functions = names().into_iter().map(|name| {
        format!(
            "{name} is of a newer CUDA, or of a further driver library: its calls are not watched"
        )
    });
    bound.chain(runtimes).chain(functions).collect()
}

/// The objects that have bound the C library's `dlsym`, if a driver is loaded. The driver itself may be bound so.
fn bound_deeply() -> Vec<String> {
    let real = elf::next(c"dlsym");
    let mut found = Vec::new();
    if real.is_null() || !has_driver() {
        return found;
    }
    elf::find_map(|object| -> Option<()> {
        // SAFETY: the loader keeps the object loaded.
        let binds = |tables: elf::Tables| unsafe { tables.has_bound(c"dlsym", real) };
        if !is_driver(object) && !object.is_own() && object.tables().is_some_and(binds) {
            let path = object.path().map(CStr::to_string_lossy).unwrap_or_default();
            found.push(path.rsplit('/').next().unwrap_or_default().to_owned());
        }
        None
    });
    found.retain(|name| !name.is_empty());
    found
}

fn is_driver(object: &elf::Object<'_>) -> bool {
    object.find(c"cuInit").is_some()
}

/// Whether a driver is loaded.
pub(super) fn has_driver() -> bool {
    elf::find_map(|object| is_driver(object).then_some(())).is_some()
}

/// Names that are kept, and the words of each.
const NAMES: usize = 16;
const WORDS: usize = 8;

/// A name, without a lock and without allocation, because `dlsym` may not do either. `hash` is 0 in a free place.
struct Name {
    hash: AtomicU64,
    text: [AtomicU64; WORDS],
}

// SAFETY: atomic numbers may be zero.
static NOT_INTERCEPTED: [Name; NAMES] = unsafe { core::mem::zeroed() };

/// Notes a function that was not intercepted.
#[cold]
pub(crate) fn note(name: &[u8]) {
    if let Some((place, true)) =
        place_of(hash_of(name), NAMES, |place| &NOT_INTERCEPTED[place].hash)
    {
        for (word, bytes) in NOT_INTERCEPTED[place].text.iter().zip(name.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
    }
}

/// The functions that were noted, some of which may be cut.
fn names() -> Vec<String> {
    let known = NOT_INTERCEPTED.iter().filter(|name| name.hash.load(Ordering::Relaxed) != 0);
    let text = |name: &Name| {
        let words = name.text.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let bytes: Vec<u8> = words.flatten().filter(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    known.map(text).collect()
}
