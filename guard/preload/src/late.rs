//! Errors that surface late: a launch is accepted, fails on the device, and a later call returns the error.
//! The launches that no synchronisation has proven are its suspects.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use gridguard::ContextState;

use crate::abi::{CopyToHost, NOT_INITIALIZED, OnHandle, Plain, SUCCESS, Status};
use crate::driver::Driver;
use crate::functions::{self, FUNCTIONS};
use crate::names::demangled;
use crate::request::Launch;
use crate::{abi, cache, guarded, process, table};

/// Launches on record.
const SLOTS: usize = 1024;
/// Streams whose synchronisations are distinguished.
const STREAMS: usize = 64;
/// Suspects that are printed.
const SHOWN: usize = 16;
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

static RECENT: [Slot; SLOTS] = [const {
    Slot {
        number: AtomicU64::new(0),
        kernel: AtomicUsize::new(0),
        stream: AtomicUsize::new(0),
        grid: [const { AtomicU32::new(0) }; 3],
    }
}; SLOTS];
static STREAM_MARKS: [Stream; STREAMS] =
    [const { Stream { stream: AtomicUsize::new(0), proven: AtomicU64::new(0) } }; STREAMS];
/// Launches so far.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// Launches before this one have succeeded, whatever their stream.
static PROVEN: AtomicU64 = AtomicU64::new(0);
/// Whether a late error was printed: all later calls return it again.
static PRINTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Its address stands for the thread.
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

/// Has the processor fetch what the next launch writes.
#[inline(always)]
pub(crate) fn prefetch() {
    cache::prefetch(slot(LAUNCHES.load(Ordering::Relaxed)));
}

/// Forgets everything, in a child process.
pub(crate) fn reset() {
    PROVEN.store(LAUNCHES.load(Ordering::Relaxed), Ordering::Relaxed);
    PRINTED.store(false, Ordering::Relaxed);
}

/// `cuStreamSynchronize`.
pub(crate) unsafe extern "C-unwind" fn synchronize_stream<const H: usize, const S: usize>(
    stream: abi::Handle,
) -> Status {
    let Some(original) = functions::original::<H, S, OnHandle>() else { return NOT_INITIALIZED };
    let before = LAUNCHES.load(Ordering::Relaxed);
    // SAFETY: the caller's own argument.
    let status = unsafe { original(stream) };
    if status == SUCCESS {
        proven(key(stream.addr(), FUNCTIONS[H].per_thread), before);
    } else {
        check((H, S), status);
    }
    status
}

/// `cuCtxSynchronize`.
pub(crate) unsafe extern "C-unwind" fn synchronize_context<const H: usize, const S: usize>()
-> Status {
    let Some(original) = functions::original::<H, S, Plain>() else { return NOT_INITIALIZED };
    let before = LAUNCHES.load(Ordering::Relaxed);
    // SAFETY: without arguments.
    let status = unsafe { original() };
    if status == SUCCESS {
        PROVEN.fetch_max(before, Ordering::Relaxed);
    } else {
        check((H, S), status);
    }
    status
}

/// A call with a stream, an event or a context, whose success proves nothing of other work.
pub(crate) unsafe extern "C-unwind" fn on_handle<const H: usize, const S: usize>(
    handle: abi::Handle,
) -> Status {
    let Some(original) = functions::original::<H, S, OnHandle>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own argument.
    let status = unsafe { original(handle) };
    if status != SUCCESS {
        check((H, S), status);
    }
    status
}

/// `cuMemcpyDtoH`.
pub(crate) unsafe extern "C-unwind" fn copy_to_host<const H: usize, const S: usize>(
    to: *mut c_void,
    from: u64,
    bytes: usize,
) -> Status {
    let Some(original) = functions::original::<H, S, CopyToHost>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own arguments.
    let status = unsafe { original(to, from, bytes) };
    if status != SUCCESS {
        check((H, S), status);
    }
    status
}

/// Reports `status`, which a call through this function and slot returned, if it is the error of earlier
/// work. Whether it is.
pub(crate) fn check(through: (usize, usize), status: Status) -> bool {
    let is_late = ContextState::after(status) == ContextState::Lost;
    if is_late && !PRINTED.swap(true, Ordering::Relaxed) {
        guarded::run(|| process::say(&report(through, status)));
    }
    is_late
}

/// Waits for the launch, which is the only suspect if that fails.
pub(crate) fn wait(launch: &Launch, per_thread: bool) {
    let before = LAUNCHES.load(Ordering::Relaxed);
    match Driver::of(launch.through).wait(launch.stream, per_thread) {
        Some(SUCCESS) => proven(key(launch.stream.addr(), per_thread), before),
        Some(status) => {
            check(launch.through, status);
        }
        None => {}
    }
}

fn slot(number: u64) -> &'static Slot {
    let place = usize::try_from(number).unwrap_or(0);
    &RECENT[place % SLOTS]
}

/// What stands for a stream: its handle, or the thread where that is a stream of the thread's own.
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
fn proven(stream: usize, before: u64) {
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
struct Suspect {
    kernel: usize,
    stream: usize,
    grid: [u32; 3],
}

/// The unproven launches on record, the newest first.
fn suspects() -> Vec<Suspect> {
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

fn report(through: (usize, usize), status: Status) -> String {
    let call =
        FUNCTIONS.get(through.0).map_or("", |function| function.symbol.to_str().unwrap_or(""));
    let error = Driver::of(through).error(status);
    let mut text = format!(
        "gridguard: {call} returned {error}: a launch that was accepted before failed on the device\n"
    );
    let suspects = suspects();
    let streams: std::collections::BTreeSet<_> = suspects.iter().map(|one| one.stream).collect();
    text += &match (suspects.len(), streams.len()) {
        (0, _) => "  suspects  none on record\n".to_owned(),
        (1, _) => "  launch    the only one that was not known to have succeeded:\n".to_owned(),
        (many, 1) => {
            format!("  suspects  {many} launches since the last synchronisation, newest first:\n")
        }
        (many, streams) => format!(
            "  suspects  {many} launches on {streams} streams since their last synchronisation, newest \
             first:\n"
        ),
    };
    for Suspect { kernel, stream, grid: [x, y, z] } in suspects.iter().take(SHOWN) {
        let name = || table::find(*kernel).map(|entry| demangled(&entry.kernel().name()));
        let what = match *kernel {
            GRAPH => "the kernels of a graph, in one launch".to_owned(),
            _ => format!("{}, grid {x} x {y} x {z}", name().unwrap_or_else(|| "<unnamed>".into())),
        };
        let stream =
            if streams.len() > 1 { format!(", stream {stream:#x}") } else { String::new() };
        text += &format!("            {what}{stream}\n");
    }
    if let Some(more) = suspects.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        text += &format!("            and {more} more\n");
    }
    if suspects.len() > 1 {
        text += "  next      run again with `gridguard run --sync`, which names the launch\n";
    }
    text
}
