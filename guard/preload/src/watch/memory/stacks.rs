//! The stacks of large allocations, sampled and kept once each, without a lock and without allocation.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::process::stack::{self, Frame};
use crate::process::{elf, guarded};
use crate::watch::slot_cache::{hash_of, place_of};

/// The smallest allocation whose stack is sampled, in bytes.
const LARGE: u64 = 1 << 20;
/// The most stacks that are kept.
const STACKS: usize = 4096;
/// Frames of a stack.
const FRAMES: usize = 48;
/// Time that samples may always take together. It is meant for the buffers that programs allocate when they begin.
const FREE_NS: u64 = 50_000_000;
/// After that, samples take at most one part in this many of the process's time.
const PART: u64 = 100;

/// A stack. `hash` is 0 in a free place; unused frames are null.
struct Stack {
    hash: AtomicU64,
    frames: [AtomicPtr<c_void>; FRAMES],
}

// SAFETY: atomic numbers may be zero, and atomic pointers null.
static KEPT: [Stack; STACKS] = unsafe { core::mem::zeroed() };
/// When the first sample was taken.
static BEGUN: OnceLock<Instant> = OnceLock::new();
/// Time that all samples have taken.
static SPENT_NS: AtomicU64 = AtomicU64::new(0);

/// The number of this thread's stack; 0 if it is not sampled: for a small allocation, or because samples have
/// taken their part of the time.
#[inline]
pub(crate) fn sample(bytes: u64) -> u32 {
    if bytes < LARGE { 0 } else { sample_large() }
}

#[cold]
fn sample_large() -> u32 {
    let number = guarded::run(|| {
        let before = Instant::now();
        let elapsed = nanoseconds(before - *BEGUN.get_or_init(|| before));
        if SPENT_NS.load(Ordering::Relaxed) > elapsed / PART + FREE_NS {
            return 0;
        }
        let mut frames = [ptr::null_mut(); FRAMES];
        let count = stack::addresses(&mut frames);
        let number = keep(&frames[..count.min(FRAMES)]);
        SPENT_NS.fetch_add(nanoseconds(before.elapsed()), Ordering::Relaxed);
        number
    });
    number.unwrap_or(0)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The number of this stack, which is kept if there is a place.
fn keep(frames: &[*mut c_void]) -> u32 {
    let found = place_of(hash_of(frames), STACKS, |place| &KEPT[place].hash);
    let Some((place, is_new)) = found else { return 0 };
    if is_new {
        let places = KEPT[place].frames.iter().zip(frames);
        places.for_each(|(place, frame)| place.store(*frame, Ordering::Relaxed));
    }
    u32::try_from(place + 1).unwrap_or(0)
}

/// The frames of the stack with this number, the innermost first. Frames of this library, of unloaded libraries, and of
/// the called allocator are left out.
pub(crate) fn frames(number: u32, most: usize) -> Vec<Frame> {
    let place = usize::try_from(number).unwrap_or(0).checked_sub(1);
    let Some(stack) = place.and_then(|place| KEPT.get(place)) else { return Vec::new() };
    let all = || {
        let addresses = stack.frames.iter().map(|frame| frame.load(Ordering::Relaxed));
        stack::without_own(addresses.filter_map(frame))
    };
    let is_of_allocator =
        |frame: &Frame| ALLOCATORS.iter().any(|library| frame.library_name().starts_with(library));
    let of_caller: Vec<_> = all().skip_while(is_of_allocator).take(most).collect();
    if of_caller.is_empty() { all().take(most).collect() } else { of_caller }
}

/// The frame of an address that was on some thread's stack earlier.
fn frame(address: *mut c_void) -> Option<Frame> {
    let _held = elf::hold(address.addr())?;
    // SAFETY: the library that contains the address is not unloaded while it is held.
    unsafe { stack::frame(address) }
}

/// Libraries of CUDA, and of PyTorch's caching allocator.
const ALLOCATORS: [&str; 3] = ["libcuda.so", "libcudart", "libc10"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_kept_once_and_found_by_its_number() {
        let sampled: Vec<u32> = (0..3).map(|_| sample(LARGE)).collect();
        assert!(
            sampled[0] > 0 && sampled.iter().all(|number| *number == sampled[0]),
            "{sampled:?}"
        );
        assert_eq!(sample(LARGE - 1), 0);
        // The test program is this library here; the C library started it.
        let names: Vec<_> = frames(sampled[0], 99).iter().map(ToString::to_string).collect();
        assert!(names.iter().any(|name| name.contains("libc.so")), "{names:?}");
        assert!(frames(0, 99).is_empty() && frames(u32::MAX, 99).is_empty());
        assert_ne!(keep(&[ptr::without_provenance_mut(64)]), sampled[0]);
        let unknown = keep(&[ptr::without_provenance_mut(64)]);
        assert!(unknown > 0 && frames(unknown, 99).is_empty(), "no library is there");
    }
}
