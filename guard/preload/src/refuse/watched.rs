//! Keeps refused launches while the program watches a part of its work, and returns them: in C by the functions below,
//! in Python by `gridguard.watching()`.

use core::ffi::c_char;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;

use gridguard_report::RefusedLaunch;
use serde_json::{Value, json};

use crate::driver::abi::Status;
use crate::driver::request::Launch;
use crate::process::{self, guarded};
use crate::watch::slot_cache::hash_of;

/// Parts of the program's work that are watched now.
static WATCHERS: AtomicU32 = AtomicU32::new(0);
/// Parts of its work that were watched so far. Each sees the launches that were kept since it began.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static KEPT: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// The most launches that are kept. Later ones are only counted.
const MAX_KEPT: usize = 256;

/// Equal refused launches of one thread, since the newest part of the work began.
struct Watched {
    since: u64,
    kind: u64,
    thread: libc::pid_t,
    times: u64,
    launch: RefusedLaunch,
}

/// Begins to keep refused launches of all threads. Returns a number for [`gridguard_watch_read`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn gridguard_watch_begin() -> u64 {
    WATCHERS.fetch_add(1, Ordering::AcqRel);
    BEGUN.fetch_add(1, Ordering::AcqRel) + 1
}

/// Writes the launches that were refused since `begun` as a document of JSON, up to `size` bytes with a zero byte at
/// the end. Returns the bytes of the whole document without that; 0 if it cannot be made.
///
/// # Safety
///
/// `into` points to `size` bytes; it may be null if `size` is 0.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn gridguard_watch_read(
    begun: u64,
    into: *mut c_char,
    size: usize,
) -> usize {
    let text = guarded::run(|| document(begun).to_string()).unwrap_or_default();
    if let Some(most) = size.checked_sub(1) {
        let copied = text.len().min(most);
        // SAFETY: fewer bytes than `into` has, from a live text.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), into, copied) };
        // SAFETY: the byte after them is the last one at most.
        unsafe { into.add(copied).write(0) };
    }
    text.len()
}

/// Ends one [`gridguard_watch_begin`]. After the last one nothing is kept.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn gridguard_watch_end() {
    let ended = |watchers: u32| watchers.checked_sub(1);
    let before = WATCHERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, ended);
    if before == Ok(1) {
        guarded::run(|| process::patiently(&KEPT).map(|mut kept| kept.clear()));
    }
}

/// Counts a refused launch if an equal one is kept. Returns whether the caller must pass the launch to [`keep`].
pub(super) fn wants(launch: &Launch, status: Status) -> bool {
    if WATCHERS.load(Ordering::Acquire) == 0 {
        return false;
    }
    let (kind, thread, begun) = (kind(launch, status), own_thread(), BEGUN.load(Ordering::Acquire));
    let Some(mut kept) = process::patiently(&KEPT) else { return false };
    let is_same = |one: &&mut Watched| (one.since, one.kind, one.thread) == (begun, kind, thread);
    match kept.iter_mut().find(is_same) {
        Some(known) => {
            known.times = known.times.saturating_add(1);
            false
        }
        None => kept.len() < MAX_KEPT,
    }
}

/// Keeps a refused launch.
pub(super) fn keep(launch: &Launch, status: Status, refused: RefusedLaunch) {
    let since = BEGUN.load(Ordering::Acquire);
    let kind = kind(launch, status);
    let watched = Watched { since, kind, thread: own_thread(), times: 1, launch: refused };
    if let Some(mut kept) = process::patiently(&KEPT) {
        kept.push(watched);
    }
}

/// Forgets the launches, in a child process.
pub(crate) fn reset() {
    process::patiently(&KEPT).into_iter().for_each(|mut kept| kept.clear());
}

fn document(begun: u64) -> Value {
    let kept = process::patiently(&KEPT);
    let of_watcher =
        kept.iter().flat_map(|kept| kept.iter()).filter(|watched| watched.since >= begun);
    let one = |Watched { thread, times, launch, .. }: &Watched| json!({"thread": thread, "times": times, "launch": launch});
    of_watcher.map(one).collect()
}

fn kind(launch: &Launch, status: Status) -> u64 {
    let Launch { kernel, grid, block, shared_bytes, cluster, cooperative, .. } = launch;
    hash_of(&(kernel.addr(), grid, block, shared_bytes, cluster, cooperative, status))
}

fn own_thread() -> libc::pid_t {
    // SAFETY: takes nothing, and cannot fail.
    unsafe { libc::gettid() }
}
