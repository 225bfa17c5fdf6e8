//! Records the last launches, and for each stream the last synchronised one.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::process;

/// Launches on record.
const SLOTS: usize = 1024;
/// Streams whose synchronisations are distinguished.
const STREAMS: usize = 64;
/// Stands for the kernels that a graph launches.
pub(crate) const GRAPH: usize = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// A launch on record. `number` is its own number plus one, and 0 while it is written. Within one line of the
/// processor's cache.
#[repr(align(64))]
struct Slot {
    number: AtomicU64,
    kernel: AtomicUsize,
    stream: AtomicUsize,
    grid: [AtomicU32; 3],
}

/// A stream whose launches before `proven` have succeeded; the stream is 0 in a free place.
struct Stream {
    stream: AtomicUsize,
    proven: AtomicU64,
}

// SAFETY: atomic numbers may be zero.
static RECENT: [Slot; SLOTS] = unsafe { core::mem::zeroed() };
// SAFETY: atomic numbers may be zero.
static STREAM_MARKS: [Stream; STREAMS] = unsafe { core::mem::zeroed() };
/// Launches so far.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// Launches before this one have succeeded, whatever their stream.
static PROVEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Its address identifies the thread.
    static THREAD: u8 = const { 0 };
}

/// Records an accepted launch of the kernel with this handle.
#[inline(always)]
pub(crate) fn record(kernel: usize, grid: [u32; 3], stream: usize, per_thread: bool) {
    let number = LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let slot = slot(number);
    slot.number.store(0, Ordering::Release);
    slot.kernel.store(kernel, Ordering::Relaxed);
    slot.stream.store(key(stream, per_thread), Ordering::Relaxed);
    slot.grid[0].store(grid[0], Ordering::Relaxed);
    slot.grid[1].store(grid[1], Ordering::Relaxed);
    slot.grid[2].store(grid[2], Ordering::Relaxed);
    slot.number.store(number + 1, Ordering::Release);
}

/// Prefetches the record of the next launch.
#[inline(always)]
pub(crate) fn prefetch() {
    process::prefetch(slot(LAUNCHES.load(Ordering::Relaxed)));
}

/// The number of launches so far.
pub(crate) fn launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Notes that all launches before number `before` have succeeded.
pub(crate) fn prove_all(before: u64) {
    PROVEN.fetch_max(before, Ordering::Relaxed);
}

/// Forgets everything, in a child process.
pub(crate) fn reset() {
    PROVEN.store(LAUNCHES.load(Ordering::Relaxed), Ordering::Relaxed);
}

fn slot(number: u64) -> &'static Slot {
    let place = usize::try_from(number).unwrap_or(0);
    &RECENT[place % SLOTS]
}

/// The identity of a stream: its handle, or for a per-thread stream the thread.
#[inline]
fn key(stream: usize, per_thread: bool) -> usize {
    if stream == PER_THREAD || (stream == 0 && per_thread) {
        // Addresses of streams are even.
        return THREAD.with(|thread| core::ptr::from_ref(thread).addr()) | 1;
    }
    // The legacy default stream has two handles, 0 and 1.
    if stream == 0 { 1 } else { stream }
}

/// Notes that the launches of the stream before number `before` have succeeded.
pub(crate) fn prove_stream(stream: usize, per_thread: bool, before: u64) {
    let stream = key(stream, per_thread);
    let place = STREAM_MARKS.iter().find(|mark| {
        let known = mark.stream.load(Ordering::Relaxed);
        let claim = || {
            let claim =
                mark.stream.compare_exchange(0, stream, Ordering::Relaxed, Ordering::Relaxed);
            claim.is_ok() || claim == Err(stream)
        };
        known == stream || (known == 0 && claim())
    });
    if let Some(mark) = place {
        mark.proven.fetch_max(before, Ordering::Relaxed);
    }
}

fn proven_before(stream: usize) -> u64 {
    let mark = STREAM_MARKS.iter().find(|mark| mark.stream.load(Ordering::Relaxed) == stream);
    let of_stream = mark.map_or(0, |mark| mark.proven.load(Ordering::Relaxed));
    of_stream.max(PROVEN.load(Ordering::Relaxed))
}

/// A launch that may have failed.
pub(crate) struct Suspect {
    pub(crate) kernel: usize,
    pub(crate) stream: usize,
    pub(crate) grid: [u32; 3],
}

/// The unproven launches on record, the newest first.
pub(crate) fn suspects() -> Vec<Suspect> {
    let newest = LAUNCHES.load(Ordering::Relaxed);
    let on_record = u64::try_from(SLOTS).unwrap_or(0);
    let oldest = newest.saturating_sub(on_record).max(PROVEN.load(Ordering::Relaxed));
    let read = |number: u64| {
        let Slot { number: at, kernel, stream, grid } = slot(number);
        let whole = at.load(Ordering::Acquire) == number + 1;
        let suspect = Suspect {
            kernel: kernel.load(Ordering::Relaxed),
            stream: stream.load(Ordering::Relaxed),
            grid: [0, 1, 2].map(|axis| grid[axis].load(Ordering::Relaxed)),
        };
        (whole && number >= proven_before(suspect.stream)).then_some(suspect)
    };
    (oldest..newest).rev().filter_map(read).collect()
}
