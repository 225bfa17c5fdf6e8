//! A table of handles: the counters of kernels, and the images of modules and libraries. It has a fixed size and no
//! lock. Counting a known kernel allocates nothing. New handles take the places of unloaded ones.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::collections::HashMap;

use crate::process;
use crate::watch::counters::{Counters, Counts};
use crate::watch::handle_record::HandleRecord;
use crate::watch::kernel::{self, Kernel, OTHERS, UNNAMED};

/// Places of the table, a power of two: for 100,000 handles at a time.
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 17;
/// The places that are searched for one handle.
const MAX_PROBES: usize = 256;
/// Marks a place while its handle is replaced. No handle has this address.
const BUSY: usize = 1;

/// One handle. The fields that a launch needs are in the first cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Entry {
    /// The handle; 0 in a free place.
    handle: AtomicUsize,
    kernel: AtomicPtr<Kernel>,
    pub(crate) counters: Counters,
    /// Data of `--fix`.
    record: AtomicPtr<HandleRecord>,
    /// The handle of the kernel's module or library, or the container's own handle. 0 if it is not known.
    container: AtomicUsize,
    /// The load number of the container when this handle was found.
    load: AtomicU64,
    /// The present load number of a module or library; 0 if it is not loaded.
    loaded: AtomicU64,
    /// The digest of a container's image; 0 if it is not known.
    image: AtomicU64,
}

// SAFETY: atomic numbers may be zero, and atomic pointers null.
static TABLE: [Entry; PLACES] = unsafe { core::mem::zeroed() };
static LOADS: AtomicU64 = AtomicU64::new(0);

/// The entry with this handle, if there is one.
#[inline]
pub(crate) fn find(handle: usize) -> Option<&'static Entry> {
    for entry in places(handle) {
        match entry.handle.load(Ordering::Acquire) {
            0 => return None,
            found if found == handle => return Some(entry),
            _ => {}
        }
    }
    None
}

/// Has the processor fetch the entry of the kernel with this handle.
#[inline(always)]
pub(crate) fn prefetch(handle: usize) {
    if let Some(entry) = places(handle).next() {
        process::prefetch(entry);
    }
}

/// The entry with this handle, which is inserted if there is none; `None` if the table is full.
pub(crate) fn find_or_insert(handle: usize) -> Option<&'static Entry> {
    if handle == 0 || handle == BUSY {
        return None;
    }
    if let Some(entry) = find(handle) {
        return Some(entry);
    }
    places(handle).find(|entry| {
        let claim = entry.handle.compare_exchange(0, handle, Ordering::AcqRel, Ordering::Acquire);
        claim.is_ok() || claim == Err(handle) || entry.take_over(handle)
    })
}

/// Records that the driver has loaded a module or library.
pub(crate) fn loaded(container: usize, image: u64) {
    let Some(entry) = find_or_insert(container) else { return };
    // The driver may have reused the handle.
    entry.retire();
    let load = LOADS.fetch_add(1, Ordering::Relaxed) + 1;
    entry.image.store(image, Ordering::Relaxed);
    entry.container.store(container, Ordering::Relaxed);
    entry.load.store(load, Ordering::Relaxed);
    entry.loaded.store(load, Ordering::Release);
}

/// The load number of a module or library; 0 if it is not known.
pub(crate) fn load_of(container: usize) -> u64 {
    find(container).map_or(0, |entry| entry.loaded.load(Ordering::Acquire))
}

/// Records that a module or library was unloaded, unless it has another load number by now.
pub(crate) fn unloaded(container: usize, load: u64) {
    if let Some(entry) = find(container) {
        let _ = entry.loaded.compare_exchange(load, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The digest of a module's or library's image; 0 if it is not known.
pub(crate) fn image_of(container: usize) -> u64 {
    find(container).map_or(0, |entry| entry.image.load(Ordering::Relaxed))
}

/// Records that `found` belongs to the same container as `of`.
pub(crate) fn found_in_context(found: usize, of: usize) {
    let is_known = |entry: &&Entry| entry.load.load(Ordering::Relaxed) > 0;
    if let Some(of) = find(of).filter(is_known)
        && let Some(found) = find_or_insert(found)
    {
        found.container.store(of.container.load(Ordering::Relaxed), Ordering::Relaxed);
        found.load.store(of.load.load(Ordering::Relaxed), Ordering::Relaxed);
        found.image.store(of.image.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The counts of each kernel that was launched or refused, and the sum for all kernels beyond `kernel::MAX_KERNELS`.
pub(crate) fn counted() -> (Vec<(&'static Kernel, Counts)>, Counts) {
    let mut all: HashMap<*const Kernel, (&Kernel, Counts)> = HashMap::new();
    let mut add = |kernel: &'static Kernel, counts: Counts| {
        if counts.is_any() {
            all.entry(kernel).or_insert((kernel, Counts::default())).1.add(&counts);
        }
    };
    kernel::all().chain([&OTHERS]).for_each(|kernel| add(kernel, kernel.counters.read()));
    TABLE.iter().for_each(|entry| add(entry.kernel(), entry.counters.read()));
    let others = all.remove(&ptr::from_ref(&OTHERS)).map(|(_, counts)| counts);
    (all.into_values().collect(), others.unwrap_or_default())
}

/// Launches of all kernels.
pub(crate) fn launches() -> u64 {
    let in_table: u64 = TABLE.iter().map(|entry| entry.counters.launches()).sum();
    let others = kernel::all().chain([&OTHERS]);
    in_table + others.map(|kernel| kernel.counters.launches()).sum::<u64>()
}

/// Forgets all counters, in a child process: they are the parent's.
pub(crate) fn reset() {
    // Pages that were never written stay untouched.
    for entry in TABLE.iter().filter(|entry| entry.counters.read().is_any()) {
        entry.counters.take();
    }
    kernel::all().chain([&OTHERS]).for_each(Kernel::reset);
}

impl Entry {
    /// Counts a refused launch. Returns whether its kind differs from the last one.
    pub(crate) fn refuse(&self, kind: u64) -> bool {
        self.counters.refuse();
        self.kernel().is_new(kind)
    }

    #[inline(always)]
    pub(crate) fn has_kernel(&self) -> bool {
        !self.kernel.load(Ordering::Acquire).is_null()
    }

    /// The kernel with this handle; [`UNNAMED`] if it is not known.
    pub(crate) fn kernel(&self) -> &'static Kernel {
        // SAFETY: null, or a kernel that is never freed.
        unsafe { self.kernel.load(Ordering::Acquire).as_ref() }.unwrap_or(&UNNAMED)
    }

    /// Sets the kernel of this handle and its module or library. If the driver reused the handle, the former kernel
    /// keeps its counts.
    pub(crate) fn set_kernel(&self, kernel: &'static Kernel, container: usize) {
        let load = load_of(container);
        if load > 0 {
            self.container.store(container, Ordering::Relaxed);
            self.load.store(load, Ordering::Relaxed);
        }
        if self.has_kernel() {
            let known = self.kernel();
            if ptr::eq(known, kernel) || (kernel.image == 0 && kernel.is_named_as(known)) {
                return;
            }
            // The same kernel, if its image was not known before.
            if known.image != 0 || !known.is_named_as(kernel) {
                known.counters.add(&self.counters.take());
            }
        }
        self.kernel.store(ptr::from_ref(kernel).cast_mut(), Ordering::Release);
    }

    /// The counts of the kernel under this handle and under handles that are gone.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.kernel().counters.read();
        counts.add(&self.counters.read());
        counts
    }

    /// The data of `--fix` for this handle.
    pub(crate) fn record(&self) -> Option<&'static HandleRecord> {
        // SAFETY: null, or a value that is never freed.
        unsafe { self.record.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn set_record(&self, record: Option<&'static HandleRecord>) {
        let record = record.map_or(ptr::null(), ptr::from_ref);
        self.record.store(record.cast_mut(), Ordering::Release);
    }

    /// Replaces the handle if its module or library was unloaded. Returns whether it was replaced.
    fn take_over(&self, handle: usize) -> bool {
        let old = self.handle.load(Ordering::Acquire);
        if old <= BUSY || !self.is_unloaded() {
            return false;
        }
        if self.handle.compare_exchange(old, BUSY, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        self.retire();
        self.handle.store(handle, Ordering::Release);
        true
    }

    /// Whether the module or library of this handle was unloaded.
    fn is_unloaded(&self) -> bool {
        let load = self.load.load(Ordering::Relaxed);
        load > 0 && load_of(self.container.load(Ordering::Relaxed)) != load
    }

    /// Resets the entry. Its kernel keeps the counts.
    fn retire(&self) {
        let counts = self.counters.take();
        if counts.is_any() {
            self.kernel().counters.add(&counts);
        }
        self.set_record(None);
        self.kernel.store(ptr::null_mut(), Ordering::Release);
        self.container.store(0, Ordering::Relaxed);
        [&self.load, &self.loaded, &self.image]
            .iter()
            .for_each(|number| number.store(0, Ordering::Relaxed));
    }
}

/// The places where the entry of `handle` may be, in order.
#[inline]
fn places(handle: usize) -> impl Iterator<Item = &'static Entry> {
    let first = hash(handle);
    (0..MAX_PROBES).map(move |probe| &TABLE[(first + probe) & (PLACES - 1)])
}

/// Handles are addresses, which differ in their middle bits.
#[inline]
const fn hash(handle: usize) -> usize {
    handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - PLACE_BITS)
}

#[cfg(test)]
mod tests {
    use gridguard_test_support::process::assert_passed;

    use super::*;
    const ONE: [u32; 5] = [1, 1, 1, 32, 0];

    /// The tests share one table, so each has handles of its own.
    fn entry(handle: usize, name: &str) -> &'static Entry {
        let entry = find_or_insert(handle).expect("a place");
        entry.set_kernel(kernel::of(name.as_bytes(), 0), 0);
        entry
    }

    fn counts_of(name: &str, image: u64) -> Option<Counts> {
        let kernel = kernel::of(name.as_bytes(), image);
        counted().0.into_iter().find(|(one, _)| ptr::eq(*one, kernel)).map(|(_, counts)| counts)
    }

    #[test]
    fn what_a_launch_needs_is_in_one_line_of_the_cache() {
        let needed = [
            core::mem::offset_of!(Entry, handle) + size_of::<AtomicUsize>(),
            core::mem::offset_of!(Entry, kernel) + size_of::<AtomicPtr<Kernel>>(),
            core::mem::offset_of!(Entry, counters) + size_of::<Counters>(),
        ];
        assert!(needed.iter().all(|end| *end <= 64), "{needed:?}");
    }

    #[test]
    fn a_kernel_keeps_its_largest_sizes_by_axis() {
        let kernel = entry(0x1000, "k");
        kernel.counters.count([1, 9, 1, 32, 0]);
        kernel.counters.count([4, 2, 1, 16, 64]);
        let Counts { launches, largest, .. } = find(0x1000).expect("known").counts();
        assert_eq!((kernel.kernel().name().as_str(), launches), ("k", 2));
        assert_eq!(largest, [4, 9, 1, 32, 64]);
    }

    #[test]
    fn a_reused_handle_begins_anew_and_the_old_kernel_is_still_counted() {
        let reused = entry(0x2000, "old kernel");
        reused.counters.count(ONE);
        entry(0x2000, "new kernel");
        assert_eq!(reused.counts().launches, 0);
        assert_eq!(counts_of("old kernel", 0).map(|counts| counts.launches), Some(1));
    }

    #[test]
    fn a_kernel_whose_image_becomes_known_later_stays_one() {
        let kernel = entry(0x3000, "of an image");
        kernel.counters.count(ONE);
        let of_image = kernel::of(b"of an image", 9);
        kernel.set_kernel(of_image, 0);
        kernel.counters.count(ONE);
        entry(0x3000, "of an image");
        assert_eq!(counts_of("of an image", 9).map(|counts| counts.launches), Some(2));
        assert_eq!(counts_of("of an image", 0), None);
        kernel.set_kernel(kernel::of(b"of an image", 10), 0);
        assert_eq!(kernel.counts().launches, 0, "another image");
    }

    #[test]
    fn handles_of_one_kernel_are_counted_together() {
        [0x4000, 0x4040].iter().for_each(|handle| entry(*handle, "both").counters.count(ONE));
        assert_eq!(counts_of("both", 0).map(|counts| counts.launches), Some(2));
    }

    /// In a process of its own: the other tests need places.
    #[test]
    fn what_is_unloaded_gives_its_place_to_others_and_stays_counted() {
        const CHILD: &str = "GRIDGUARD_TEST_FULL_TABLE";
        if std::env::var_os(CHILD).is_none() {
            let test =
                "watch::table::tests::what_is_unloaded_gives_its_place_to_others_and_stays_counted";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let child = child.args([test, "--exact", "--nocapture"]).env(CHILD, "1");
            assert_passed(test, &child.output().unwrap());
            return;
        }
        let kernel = kernel::of(b"reloaded", 7);
        let (first, count) = (0x7f00_0000_0000, 500_000);
        for number in 0..count {
            let container = first + 128 * number;
            loaded(container, 7);
            let entry = find_or_insert(container + 64).expect("a place");
            entry.set_kernel(kernel, container);
            entry.counters.count(ONE);
            unloaded(container, load_of(container));
        }
        assert_eq!(counts_of("reloaded", 7).map(|counts| counts.launches), Some(500_000));
        assert_eq!((counted().0.len(), launches()), (1, 500_000));
        // Loaded handles keep their places.
        let handles = || (0..2 * PLACES).map(|number| 0x7e00_0000_0000 + 64 * number);
        let inserted: Vec<_> =
            handles().filter(|handle| find_or_insert(*handle).is_some()).collect();
        assert!((100_000..=PLACES).contains(&inserted.len()), "{}", inserted.len());
        assert!(inserted.iter().all(|handle| find(*handle).is_some()));
    }

    #[test]
    fn handles_that_are_addresses_of_small_objects_find_places_of_their_own() {
        let handles = || (0..20_000).map(|number: usize| 0x7f00_0000_0000 + 64 * number);
        assert!(handles().all(|handle| find_or_insert(handle).is_some()));
        assert!(handles().all(|handle| find(handle).is_some()));
        assert!(find_or_insert(0).is_none());
    }
}
