//! The live allocations, by address: a table of fixed size, which is read and written without a lock and
//! without allocation.
//!
//! An address has its place in one bucket. Places are taken and given back in any order, so a search looks at
//! the whole bucket, and no marks of former entries remain.

use core::sync::atomic::{AtomicU64, Ordering};

use gridguard_report::MemoryKind;

/// The most devices that are distinguished. Further devices count as the last one.
pub(crate) const DEVICES: usize = 64;
/// Entries of a bucket.
const ENTRIES: usize = 16;
/// With the entries of a bucket, room for more than 100,000 allocations.
const BUCKET_BITS: u32 = 13;
/// The key of an entry that is being written.
const BUSY: u64 = u64::MAX;
/// Marks the keys of handles, which are no addresses; those have fewer bits.
const HANDLE: u64 = 1 << 63;

/// A live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) kind: MemoryKind,
    /// The number of the device.
    pub(crate) device: u8,
    /// The number of the stack of the call, as `stacks` knows it; 0 if it was not sampled.
    pub(crate) stack: u32,
}

/// The key of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

/// The result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Whether it is in the table; else its bucket is full.
    pub(crate) has_place: bool,
    /// The former entry with the same key, whose end was not seen. It is no longer in the table.
    pub(crate) replaced: Option<Allocation>,
}

/// `keys` is 0 in a free place; the other fields belong to the key.
#[repr(align(64))]
struct Bucket {
    keys: [AtomicU64; ENTRIES],
    bytes: [AtomicU64; ENTRIES],
    rest: [AtomicU64; ENTRIES],
}

// SAFETY: atomic numbers may be zero.
static TABLE: [Bucket; 1 << BUCKET_BITS] = unsafe { core::mem::zeroed() };

impl Key {
    /// The key of memory at this address.
    pub(crate) const fn of_address(address: u64) -> Self {
        Self(address)
    }

    /// The key of physical memory with this handle.
    pub(crate) const fn of_handle(handle: u64) -> Self {
        Self(handle ^ HANDLE)
    }

    fn bucket(self) -> &'static Bucket {
        let hash = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BUCKET_BITS);
        &TABLE[usize::try_from(hash).unwrap_or(0) & ((1 << BUCKET_BITS) - 1)]
    }
}

/// Enters an allocation that the driver made just now.
pub(crate) fn insert(key: Key, allocation: Allocation) -> Inserted {
    if key.0 == 0 || key.0 == BUSY {
        return Inserted { has_place: false, replaced: None };
    }
    let bucket = key.bucket();
    let (mut replaced, mut free) = (None, ENTRIES);
    for (place, known) in bucket.keys.iter().enumerate() {
        let known = known.load(Ordering::Relaxed);
        if known == key.0 {
            replaced = bucket.take(place, key.0);
        }
        if (known == 0 || known == key.0) && free == ENTRIES {
            free = place;
        }
    }
    for (place, known) in bucket.keys.iter().enumerate().skip(free) {
        if known.compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            bucket.bytes[place].store(allocation.bytes, Ordering::Relaxed);
            bucket.rest[place].store(allocation.rest(), Ordering::Relaxed);
            known.store(key.0, Ordering::Release);
            return Inserted { has_place: true, replaced };
        }
    }
    Inserted { has_place: false, replaced }
}

/// Takes the allocation out of the table, if it is there.
pub(crate) fn remove(key: Key) -> Option<Allocation> {
    if key.0 == 0 || key.0 == BUSY {
        return None;
    }
    let bucket = key.bucket();
    let place = bucket.keys.iter().position(|known| known.load(Ordering::Relaxed) == key.0)?;
    bucket.take(place, key.0)
}

/// Takes out all allocations at addresses of this device, and hands them to `each`.
pub(crate) fn remove_device(device: u8, mut each: impl FnMut(Allocation)) {
    for (bucket, place, key) in entries() {
        let is_of_device =
            Allocation::from_parts(0, bucket.rest[place].load(Ordering::Relaxed)).device == device;
        if key & HANDLE == 0
            && is_of_device
            && let Some(allocation) = bucket.take(place, key)
        {
            each(allocation);
        }
    }
}

/// All live allocations. Allocations that change meanwhile may be missing.
pub(crate) fn all() -> impl Iterator<Item = Allocation> {
    entries().filter_map(|(bucket, place, key)| {
        let bytes = bucket.bytes[place].load(Ordering::Relaxed);
        let rest = bucket.rest[place].load(Ordering::Acquire);
        // Else another allocation has taken the place during the read.
        let is_whole = bucket.keys[place].load(Ordering::Relaxed) == key;
        is_whole.then(|| Allocation::from_parts(bytes, rest))
    })
}

/// Forgets everything, in a child process.
pub(crate) fn reset() {
    for key in TABLE.iter().flat_map(|bucket| &bucket.keys) {
        // Pages that were never written stay untouched.
        if key.load(Ordering::Relaxed) != 0 {
            key.store(0, Ordering::Relaxed);
        }
    }
}

fn entries() -> impl Iterator<Item = (&'static Bucket, usize, u64)> {
    TABLE.iter().flat_map(|bucket| {
        let entry = move |(place, key): (usize, &AtomicU64)| {
            let key = key.load(Ordering::Acquire);
            (key != 0 && key != BUSY).then_some((bucket, place, key))
        };
        bucket.keys.iter().enumerate().filter_map(entry)
    })
}

impl Bucket {
    /// Takes the entry at `place` out, unless its key is no longer `key`.
    fn take(&self, place: usize, key: u64) -> Option<Allocation> {
        let known = &self.keys[place];
        known.compare_exchange(key, BUSY, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let bytes = self.bytes[place].load(Ordering::Relaxed);
        let rest = self.rest[place].load(Ordering::Relaxed);
        known.store(0, Ordering::Release);
        Some(Allocation::from_parts(bytes, rest))
    }
}

impl Allocation {
    /// The kind, the device and the stack in one number.
    fn rest(&self) -> u64 {
        let kind = match self.kind {
            MemoryKind::Managed => 1,
            MemoryKind::Pinned => 2,
            _ => 0,
        };
        u64::from(self.stack) | u64::from(self.device) << 32 | kind << 40
    }

    fn from_parts(bytes: u64, rest: u64) -> Self {
        let [stack @ .., device, kind, _, _] = rest.to_le_bytes();
        let kind = match kind {
            1 => MemoryKind::Managed,
            2 => MemoryKind::Pinned,
            _ => MemoryKind::Device,
        };
        Self { bytes, kind, device, stack: u32::from_le_bytes(stack) }
    }
}

#[cfg(test)]
mod tests {
    use gridguard_test_support::process::assert_passed;

    use super::*;

    const ONE: Allocation =
        Allocation { bytes: 1 << 40, kind: MemoryKind::Pinned, device: 63, stack: u32::MAX };
    const FRESH: Inserted = Inserted { has_place: true, replaced: None };

    #[test]
    fn an_allocation_is_found_until_it_is_removed() {
        let (address, handle) = (Key::of_address(0x7f00_0000), Key::of_handle(0x7f00_0000));
        assert_eq!(remove(address), None);
        assert_eq!(insert(address, ONE), FRESH);
        assert_eq!(remove(handle), None, "a handle is no address");
        let again = Allocation { bytes: 7, kind: MemoryKind::Managed, ..ONE };
        assert_eq!(insert(address, again), Inserted { replaced: Some(ONE), ..FRESH });
        assert!(all().any(|live| live == again) && all().all(|live| live != ONE));
        assert_eq!((remove(address), remove(address)), (Some(again), None));
        assert!(!insert(Key::of_address(0), ONE).has_place);
        assert_eq!(remove(Key::of_address(0)), None);
    }

    #[test]
    fn the_memory_of_a_device_is_removed_at_once_except_for_handles() {
        let on = |device| Allocation { bytes: 11, device, ..ONE };
        let key = |number: u64| Key::of_address(0x7e00_0000 + 512 * number);
        for number in 0..100 {
            assert_eq!(insert(key(number), on(if number < 60 { 7 } else { 8 })), FRESH);
        }
        assert_eq!(insert(Key::of_handle(5), on(7)), FRESH);
        let mut removed = 0;
        remove_device(7, |allocation| removed += allocation.bytes);
        assert_eq!(removed, 60 * 11);
        assert_eq!(remove(Key::of_handle(5)), Some(on(7)));
        assert!((60..100).all(|number| remove(key(number)) == Some(on(8))));
    }

    /// In a process of its own: the other tests need places.
    #[test]
    fn more_than_a_hundred_thousand_allocations_have_a_place_and_give_it_back() {
        const CHILD: &str = "GRIDGUARD_TEST_FULL_MEMORY";
        if std::env::var_os(CHILD).is_none() {
            let test = "watch::memory::live::tests::more_than_a_hundred_thousand_allocations_have_a_place_and_give_it_back";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let child = child.args([test, "--exact", "--nocapture"]).env(CHILD, "1");
            assert_passed(test, &child.output().unwrap());
            return;
        }
        // As of allocations of 2 MiB.
        let key = |number: u64| Key::of_address(0x7000_0000_0000 + (number << 21));
        for _ in 0..3 {
            let entered: Vec<_> =
                (0..200_000).filter(|number| insert(key(*number), ONE) == FRESH).collect();
            assert!((100_000..=16 << 13).contains(&entered.len()), "{}", entered.len());
            assert!(entered.iter().all(|number| remove(key(*number)) == Some(ONE)));
        }
    }

    #[test]
    fn threads_enter_and_remove_without_losing_any() {
        let work = |thread: u64| {
            for number in 0..20_000 {
                let key = Key::of_address(0x6000_0000_0000 + (thread << 32) + 512 * (number % 50));
                let own = Allocation { bytes: number, stack: 3, ..ONE };
                assert_eq!(insert(key, own), FRESH);
                assert_eq!(remove(key), Some(own));
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|thread| drop(scope.spawn(move || work(thread))));
        });
    }
}
