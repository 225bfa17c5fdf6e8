//! Counters of each kernel, by its handle: a table of fixed size, which is read and written without a lock
//! and, once a kernel is known, without allocation.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::cache;
use crate::fix::known::Known;

/// Kernels that are counted by themselves; launches of others are counted together.
pub(crate) const MAX_KERNELS: usize = 100_000;
/// Places of the table, a power of two.
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 17;
/// Places that are looked at for one handle.
const MAX_PROBES: usize = 256;
/// Bytes of all names that are kept whole; later ones are cut.
const NAME_BYTES: usize = 8 << 20;
/// The longest name that is kept whole.
const LONG_NAME: usize = 4096;
/// What is kept of a name where it is cut.
const SHORT_NAME: usize = 48;
/// What follows the start of a name that is cut.
const CUT: &[u8] = b"...";

/// What is known of one kernel.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Entry {
    /// The handle; 0 in a free place.
    handle: AtomicUsize,
    launches: AtomicU64,
    refused: AtomicU64,
    /// The last refusal that was printed.
    printed: AtomicU64,
    name: AtomicPtr<Name>,
    grid: [AtomicU32; 3],
    threads: AtomicU32,
    shared_bytes: AtomicU32,
    /// What `--fix` knows of it.
    known: AtomicPtr<Known>,
}

/// The name of a kernel, as the driver has it.
#[derive(Debug)]
pub(crate) struct Name(Box<[u8]>);

/// The largest launch configurations of a kernel, each axis by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Largest {
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
}

/// The counters of a kernel at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) name: String,
    pub(crate) launches: u64,
    pub(crate) refused: u64,
    /// Launches that forms of the kernel made in its place.
    pub(crate) fixed: u64,
    pub(crate) largest: Largest,
}

impl Name {
    /// Whether this is what is kept of `name`.
    fn is_of(&self, name: &[u8]) -> bool {
        let start = self.0.strip_suffix(CUT).filter(|start| start.len() < name.len());
        *self.0 == *name || start.is_some_and(|start| name.starts_with(start))
    }
}

static TABLE: [Entry; PLACES] = [const { Entry::free() }; PLACES];
static KERNELS: AtomicUsize = AtomicUsize::new(0);
static NAMED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Launches of kernels that have no place.
static OTHER_LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// The counters of handles that the driver has reused for other kernels.
static REUSED: AtomicPtr<Reused> = AtomicPtr::new(ptr::null_mut());

/// A list that only grows.
struct Reused {
    counted: Counted,
    next: *mut Reused,
}

/// The entry of the kernel with this handle, if it has one.
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
        cache::prefetch(entry);
    }
}

/// The entry of the kernel with this handle, which gets one; `None` if the table is full.
pub(crate) fn find_or_insert(handle: usize) -> Option<&'static Entry> {
    if handle == 0 {
        return None;
    }
    if let Some(entry) = find(handle) {
        return Some(entry);
    }
    if KERNELS.fetch_add(1, Ordering::Relaxed) >= MAX_KERNELS {
        KERNELS.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    let claimed = places(handle).find(|entry| {
        let claim = entry.handle.compare_exchange(0, handle, Ordering::AcqRel, Ordering::Acquire);
        claim.is_ok() || claim == Err(handle)
    });
    if claimed.is_none() {
        KERNELS.fetch_sub(1, Ordering::Relaxed);
    }
    claimed
}

/// Counts a launch of a kernel without an entry.
pub(crate) fn count_other() {
    OTHER_LAUNCHES.fetch_add(1, Ordering::Relaxed);
}

/// Launches of kernels without an entry.
pub(crate) fn other_launches() -> u64 {
    OTHER_LAUNCHES.load(Ordering::Relaxed)
}

/// The counters of all kernels that were launched or refused.
pub(crate) fn counted() -> Vec<Counted> {
    let in_table = TABLE.iter().filter(|entry| entry.is_used()).map(Entry::counted);
    in_table.chain(reused()).collect()
}

/// Launches of all kernels.
pub(crate) fn launches() -> u64 {
    let in_table: u64 = TABLE.iter().map(|entry| entry.launches.load(Ordering::Relaxed)).sum();
    in_table + reused().map(|counted| counted.launches).sum::<u64>() + other_launches()
}

/// Forgets all counters, in a child process: they are the parent's.
pub(crate) fn reset() {
    TABLE.iter().filter(|entry| entry.is_used()).for_each(Entry::reset);
    // What it points to may be in use by a thread that the child does not have; it stays allocated.
    REUSED.store(ptr::null_mut(), Ordering::Release);
    OTHER_LAUNCHES.store(0, Ordering::Relaxed);
}

impl Entry {
    const fn free() -> Self {
        Self {
            handle: AtomicUsize::new(0),
            launches: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            printed: AtomicU64::new(0),
            name: AtomicPtr::new(ptr::null_mut()),
            grid: [const { AtomicU32::new(0) }; 3],
            threads: AtomicU32::new(0),
            shared_bytes: AtomicU32::new(0),
            known: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Counts an accepted launch.
    #[inline(always)]
    pub(crate) fn count(&self, Largest { grid, threads, shared_bytes }: Largest) {
        self.launches.fetch_add(1, Ordering::Relaxed);
        let raise = |most: &AtomicU32, number: u32| {
            if number > most.load(Ordering::Relaxed) {
                most.fetch_max(number, Ordering::Relaxed);
            }
        };
        raise(&self.grid[0], grid[0]);
        raise(&self.grid[1], grid[1]);
        raise(&self.grid[2], grid[2]);
        raise(&self.threads, threads);
        raise(&self.shared_bytes, shared_bytes);
    }

    /// Counts a refused launch. Whether it is another than the one that was counted before: `kind` is a
    /// number for its causes.
    pub(crate) fn refuse(&self, kind: u64) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.printed.swap(kind, Ordering::Relaxed) != kind
    }

    pub(crate) fn has_name(&self) -> bool {
        !self.name.load(Ordering::Acquire).is_null()
    }

    /// Sets the kernel's name. The counters of another kernel, whose handle the driver reused, are kept
    /// apart.
    pub(crate) fn set_name(&self, name: &[u8]) {
        if let Some(known) = self.name() {
            if known.is_of(name) {
                return;
            }
            if self.is_used() {
                push(self.counted());
            }
            self.reset();
        }
        let fresh = Box::into_raw(Box::new(Name(kept(name))));
        // Another thread may be reading the old name, which stays allocated.
        self.name.store(fresh, Ordering::Release);
    }

    pub(crate) fn counted(&self) -> Counted {
        let load = |number: &AtomicU32| number.load(Ordering::Relaxed);
        let name = self.name().map(|name| String::from_utf8_lossy(&name.0).into_owned());
        Counted {
            name: name.unwrap_or_else(|| "<unnamed>".to_owned()),
            launches: self.launches.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            fixed: self.known().map_or(0, Known::fixed),
            largest: Largest {
                grid: [load(&self.grid[0]), load(&self.grid[1]), load(&self.grid[2])],
                threads: load(&self.threads),
                shared_bytes: load(&self.shared_bytes),
            },
        }
    }

    /// What `--fix` knows of the kernel, or of the module or library that has this handle.
    pub(crate) fn known(&self) -> Option<&'static Known> {
        // SAFETY: null, or a value that is never freed.
        unsafe { self.known.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn set_known(&self, known: Known) {
        // Another thread may be reading the old value, which stays allocated.
        self.known.store(Box::into_raw(Box::new(known)), Ordering::Release);
    }

    fn name(&self) -> Option<&'static Name> {
        // SAFETY: null, or a name that is never freed.
        unsafe { self.name.load(Ordering::Acquire).as_ref() }
    }

    fn is_used(&self) -> bool {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let fixed = self.known().map_or(0, Known::fixed);
        load(&self.launches) > 0 || load(&self.refused) > 0 || fixed > 0
    }

    fn reset(&self) {
        let Self { launches, refused, printed, grid, threads, shared_bytes, .. } = self;
        if let Some(known) = self.known() {
            known.reset();
        }
        [launches, refused, printed].iter().for_each(|number| number.store(0, Ordering::Relaxed));
        let sizes = grid.iter().chain([threads, shared_bytes]);
        sizes.for_each(|number| number.store(0, Ordering::Relaxed));
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

/// What is kept of a name.
fn kept(name: &[u8]) -> Box<[u8]> {
    let spent = NAMED_BYTES.fetch_add(name.len().min(LONG_NAME), Ordering::Relaxed);
    let most = if spent < NAME_BYTES { LONG_NAME } else { SHORT_NAME };
    match name.get(..most) {
        Some(start) => [start, CUT].concat().into(),
        None => name.into(),
    }
}

fn push(counted: Counted) {
    let fresh = Box::into_raw(Box::new(Reused { counted, next: ptr::null_mut() }));
    let mut head = REUSED.load(Ordering::Acquire);
    loop {
        // SAFETY: not yet in the list, so no one else has it.
        unsafe { (*fresh).next = head };
        match REUSED.compare_exchange_weak(head, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => head = other,
        }
    }
}

fn reused() -> impl Iterator<Item = Counted> {
    // SAFETY: null, or an element of the list, which is never freed nor changed.
    let mut next = unsafe { REUSED.load(Ordering::Acquire).as_ref() };
    core::iter::from_fn(move || {
        let Reused { counted, next: following } = next?;
        // SAFETY: as above.
        next = unsafe { following.as_ref() };
        Some(counted.clone())
    })
}

#[cfg(test)]
mod tests {
    use gridguard_test_support::process::assert_passed;

    use super::*;

    /// The tests share one table, so each has handles of its own.
    fn entry(handle: usize) -> &'static Entry {
        find_or_insert(handle).expect("a place")
    }

    #[test]
    fn a_kernel_keeps_its_largest_sizes_by_axis() {
        let kernel = entry(0x1000);
        kernel.set_name(b"k");
        kernel.count(Largest { grid: [1, 9, 1], threads: 32, shared_bytes: 0 });
        kernel.count(Largest { grid: [4, 2, 1], threads: 16, shared_bytes: 64 });
        let Counted { name, launches, largest, .. } = find(0x1000).expect("known").counted();
        assert_eq!((name.as_str(), launches), ("k", 2));
        assert_eq!(largest, Largest { grid: [4, 9, 1], threads: 32, shared_bytes: 64 });
    }

    #[test]
    fn a_reused_handle_begins_anew_and_the_old_kernel_is_still_counted() {
        let kernel = entry(0x2000);
        kernel.set_name(b"old kernel");
        kernel.count(Largest { grid: [1, 1, 1], threads: 32, shared_bytes: 0 });
        kernel.set_name(b"new kernel");
        assert_eq!(kernel.counted().launches, 0);
        let old = counted().into_iter().find(|counted| counted.name == "old kernel");
        assert_eq!(old.map(|counted| counted.launches), Some(1));
    }

    #[test]
    fn a_refusal_of_another_kind_is_another_one() {
        let kernel = entry(0x3000);
        assert_eq!([1, 1, 2, 2].map(|kind| kernel.refuse(kind)), [true, false, true, false]);
        assert_eq!(kernel.counted().refused, 4);
    }

    #[test]
    fn a_name_of_64_kib_is_cut() {
        let kernel = entry(0x4000);
        kernel.set_name(&[b'n'; 64 << 10]);
        assert!(kernel.counted().name.len() <= LONG_NAME + 3);
    }

    #[test]
    fn a_kernel_that_is_looked_up_again_and_again_stays_the_same() {
        let kernel = entry(0x5000);
        let (name, long) = ("k".repeat(LONG_NAME / 2), "l".repeat(LONG_NAME * 2));
        kernel.set_name(name.as_bytes());
        kernel.count(Largest { grid: [1, 1, 1], threads: 32, shared_bytes: 0 });
        for _ in 0..=2 * NAME_BYTES / name.len() {
            kernel.set_name(name.as_bytes());
        }
        assert_eq!((kernel.counted().launches, kernel.counted().name), (1, name));
        kernel.set_name(long.as_bytes());
        kernel.count(Largest { grid: [1, 1, 1], threads: 32, shared_bytes: 0 });
        kernel.set_name(long.as_bytes());
        assert_eq!(kernel.counted().launches, 1);
        kernel.set_name(&long.as_bytes()[..LONG_NAME]);
        assert_eq!(kernel.counted().launches, 0, "another name");
    }

    /// In a process of its own: the other tests need places.
    #[test]
    fn kernels_beyond_the_hundred_thousandth_are_counted_together() {
        const CHILD: &str = "GRIDGUARD_TEST_FULL_TABLE";
        if std::env::var_os(CHILD).is_none() {
            let test = "table::tests::kernels_beyond_the_hundred_thousandth_are_counted_together";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let child = child.args([test, "--exact", "--nocapture"]).env(CHILD, "1");
            assert_passed(test, &child.output().unwrap());
            return;
        }
        let handles = || (1..=MAX_KERNELS + 50_000).map(|number| 0x7f00_0000_0000 + 64 * number);
        for handle in handles() {
            match find_or_insert(handle) {
                Some(kernel) => {
                    kernel.set_name(format!("kernel_{handle}").as_bytes());
                    kernel.count(Largest { grid: [1; 3], threads: 32, shared_bytes: 0 });
                }
                None => count_other(),
            }
        }
        let (own, others) = (counted().len(), other_launches());
        assert_eq!((own, others), (MAX_KERNELS, 50_000));
        assert_eq!(launches(), 150_000);
        let known = handles().filter(|handle| find(*handle).is_some()).count();
        assert_eq!(known, MAX_KERNELS);
        // What has a place keeps it.
        let first = find_or_insert(0x7f00_0000_0040).unwrap();
        first.count(Largest { grid: [1; 3], threads: 32, shared_bytes: 0 });
        assert_eq!((first.counted().launches, launches()), (2, 150_001));
    }

    #[test]
    fn handles_that_are_addresses_of_small_objects_find_places_of_their_own() {
        let handles = || (0..20_000).map(|number: usize| 0x7f00_0000_0000 + 64 * number);
        assert!(handles().all(|handle| find_or_insert(handle).is_some()));
        assert!(handles().all(|handle| find(handle).is_some()));
        assert!(find_or_insert(0).is_none());
    }
}
