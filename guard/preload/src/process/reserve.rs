//! The allocator of this library: the C library's, and memory in reserve for when that has none. Rust ends a process whose
//! allocation fails, but a watched program may handle that.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes in reserve. They are used once.
const BYTES: usize = 8 << 20;
/// The largest allocation that is made of the reserve. Larger ones are tried first by [`has_room`].
const LARGEST: usize = 1 << 20;

static RESERVE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static USED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

struct Allocator;

/// Maps the reserve. Pages that are never used take no memory.
pub(crate) fn begin() {
    if let Some(reserve) = map(BYTES) {
        RESERVE.store(reserve, Ordering::Release);
    }
}

/// Whether so little is left that no work should begin.
pub(crate) fn is_low() -> bool {
    USED.load(Ordering::Relaxed) > BYTES / 2
}

/// Whether `bytes` can be allocated now. Asked before work whose memory depends on what a program passes.
pub(crate) fn has_room(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes.max(LARGEST + 1)).is_ok()
}

/// Whether there is memory to rewrite or analyse a text of `bytes`; the error says that there is none.
pub(crate) fn for_text(bytes: usize) -> Result<(), &'static str> {
    const TIMES: usize = 8;
    if has_room(bytes.saturating_mul(TIMES)) {
        Ok(())
    } else {
        Err("there is no memory for its PTX")
    }
}

/// Maps memory that is zero.
pub(crate) fn map(bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory, at an address that the kernel chooses.
    let mapped = unsafe {
        libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    (mapped != libc::MAP_FAILED).then_some(mapped.cast())
}

/// Memory of the reserve; null if there is none.
#[cold]
fn of_reserve(layout: Layout) -> *mut u8 {
    let reserve = RESERVE.load(Ordering::Acquire);
    if reserve.is_null() || layout.size() > LARGEST || layout.align() > ALIGN {
        return ptr::null_mut();
    }
    let bytes = layout.size().next_multiple_of(ALIGN);
    let begin = USED.fetch_add(bytes, Ordering::Relaxed);
    match begin + bytes <= BYTES {
        // SAFETY: within the mapping.
        true => unsafe { reserve.add(begin) },
        false => ptr::null_mut(),
    }
}

fn is_of_reserve(memory: *mut u8) -> bool {
    let reserve = RESERVE.load(Ordering::Relaxed).addr();
    (reserve..reserve + BYTES).contains(&memory.addr())
}

// SAFETY: memory of the C library, or of the reserve, which gives each part once, and aligned.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by this function's contract.
        let memory = unsafe { System.alloc(layout) };
        if memory.is_null() { of_reserve(layout) } else { memory }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if !is_of_reserve(memory) {
            // SAFETY: by this function's contract, of `System`.
            unsafe { System.dealloc(memory, layout) };
        }
    }
}

/// The largest alignment of what this library allocates.
const ALIGN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_gives_each_part_once_and_takes_none_back() {
        begin();
        let layout = Layout::from_size_align(100, 8).expect("a layout");
        let parts = [of_reserve(layout), of_reserve(layout)];
        assert!(parts.iter().all(|part| is_of_reserve(*part)) && parts[0] != parts[1]);
        // SAFETY: parts of the reserve, of this layout.
        let moved = unsafe {
            parts[0].write_bytes(7, 100);
            ALLOCATOR.dealloc(parts[1], layout);
            ALLOCATOR.realloc(parts[0], layout, 200)
        };
        // SAFETY: a part of 200 bytes.
        assert_eq!(unsafe { moved.cast::<[u8; 100]>().read() }, [7; 100]);
        assert!(of_reserve(Layout::from_size_align(LARGEST + 1, 8).expect("a layout")).is_null());
        assert!(has_room(1 << 20) && !has_room(usize::MAX >> 1) && !is_low());
    }
}
