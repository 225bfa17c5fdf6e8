//! How much memory the process holds, and the allocations that were refused and then tried again.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use gridguard_report::{DeviceMemory, MemoryHeld, MemoryKind};

use crate::process;
use crate::watch::memory::live::{Allocation, DEVICES};

/// Bytes and number of some allocations.
pub(crate) struct Sum {
    bytes: AtomicU64,
    allocations: AtomicU64,
    peak: AtomicU64,
}

/// Kinds and sizes of refused allocations that are distinguished.
const SIZES: usize = 64;

static OF_DEVICES: [Sum; DEVICES] = [const { Sum::zero() }; DEVICES];
static MANAGED: Sum = Sum::zero();
static PINNED: Sum = Sum::zero();
/// Allocations that found no place in the table.
pub(crate) static UNTRACKED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static RETRIED: AtomicU64 = AtomicU64::new(0);
/// Refused allocations since the last one of their kind, device and size that succeeded.
static PENDING: Mutex<Vec<(Size, u64)>> = Mutex::new(Vec::new());
static PENDING_COUNT: AtomicU64 = AtomicU64::new(0);

/// The kind, the device and the bytes of an allocation.
type Size = (MemoryKind, u8, u64);

/// The sum that allocations of this kind and device count in.
pub(crate) fn of(kind: MemoryKind, device: u8) -> &'static Sum {
    match kind {
        MemoryKind::Managed => &MANAGED,
        MemoryKind::Pinned => &PINNED,
        _ => &OF_DEVICES[usize::from(device).min(DEVICES - 1)],
    }
}

/// The sums of all devices that have one.
pub(crate) fn devices() -> Vec<DeviceMemory> {
    let devices = (0..).zip(&OF_DEVICES);
    let devices = devices.filter(|(_, sum)| sum.held().peak_bytes > 0);
    let device = |(device, sum): (u32, &Sum)| DeviceMemory { device, held: sum.held() };
    devices.map(device).collect()
}

/// Counts a refused allocation. Returns whether it is the first of this kind, device and size since one succeeded.
pub(crate) fn refuse(kind: MemoryKind, device: u8, bytes: u64) -> bool {
    REFUSED.fetch_add(1, Ordering::Relaxed);
    let Some(mut pending) = process::patiently(&PENDING) else { return false };
    let size = (kind, device, bytes);
    if let Some((_, refused)) = pending.iter_mut().find(|(known, _)| *known == size) {
        *refused += 1;
        return false;
    }
    let has_room = pending.len() < SIZES;
    if has_room {
        pending.push((size, 1));
        PENDING_COUNT.fetch_add(1, Ordering::Relaxed);
    }
    has_room
}

/// Records a successful allocation. Earlier refused allocations of the same kind, device and size then count as
/// successfully retried.
#[inline]
pub(crate) fn succeed(kind: MemoryKind, device: u8, bytes: u64) {
    if PENDING_COUNT.load(Ordering::Relaxed) > 0 {
        retry((kind, device, bytes));
    }
}

#[cold]
fn retry(size: Size) {
    let Some(mut pending) = process::patiently(&PENDING) else { return };
    if let Some(place) = pending.iter().position(|(known, _)| *known == size) {
        RETRIED.fetch_add(pending.swap_remove(place).1, Ordering::Relaxed);
        PENDING_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The numbers of refused and of successfully retried allocations.
pub(crate) fn refused() -> (u64, u64) {
    (REFUSED.load(Ordering::Relaxed), RETRIED.load(Ordering::Relaxed))
}

/// Forgets everything, in a child process.
pub(crate) fn reset() {
    OF_DEVICES.iter().chain([&MANAGED, &PINNED]).for_each(Sum::reset);
    process::patiently(&PENDING).into_iter().for_each(|mut pending| pending.clear());
    let counts = [&REFUSED, &RETRIED, &PENDING_COUNT, &UNTRACKED];
    counts.iter().for_each(|number| number.store(0, Ordering::Relaxed));
}

impl Sum {
    const fn zero() -> Self {
        Self { bytes: AtomicU64::new(0), allocations: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn add(&self, bytes: u64) {
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        self.allocations.fetch_add(1, Ordering::Relaxed);
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// The end of an allocation that was added before.
    #[inline]
    pub(crate) fn remove(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.allocations.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn held(&self) -> MemoryHeld {
        MemoryHeld {
            bytes: self.bytes.load(Ordering::Relaxed),
            allocations: self.allocations.load(Ordering::Relaxed),
            peak_bytes: self.peak.load(Ordering::Relaxed),
        }
    }

    fn reset(&self) {
        let Self { bytes, allocations, peak } = self;
        [bytes, allocations, peak].iter().for_each(|number| number.store(0, Ordering::Relaxed));
    }
}

/// Counts an allocation of the table.
#[inline]
pub(crate) fn add(Allocation { bytes, kind, device, .. }: Allocation) {
    of(kind, device).add(bytes);
}

/// Counts the end of an allocation of the table.
#[inline]
pub(crate) fn remove(Allocation { bytes, kind, device, .. }: Allocation) {
    of(kind, device).remove(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_keeps_its_peak() {
        let sum = of(MemoryKind::Device, 40);
        [5, 7].into_iter().for_each(|bytes| sum.add(bytes));
        sum.remove(7);
        sum.add(1);
        assert_eq!(sum.held(), MemoryHeld { bytes: 6, allocations: 2, peak_bytes: 12 });
        let expected = DeviceMemory { device: 40, held: sum.held() };
        assert!(devices().contains(&expected), "{:?}", devices());
    }

    /// All in one, since the tests share the counters.
    #[test]
    fn refused_allocations_are_pending_until_one_of_their_size_succeeds() {
        let device = MemoryKind::Device;
        let refuse = |bytes| refuse(device, 0, bytes);
        assert_eq!([refuse(100), refuse(100), refuse(200)], [true, false, true]);
        succeed(device, 0, 300);
        succeed(device, 1, 100);
        succeed(MemoryKind::Pinned, 0, 100);
        assert_eq!(refused(), (3, 0));
        succeed(device, 0, 100);
        succeed(device, 0, 100);
        assert_eq!(refused(), (3, 2));
        assert!(refuse(100), "it was granted meanwhile");
        let more = (1000..1100).filter(|bytes| refuse(*bytes)).count();
        assert_eq!((more, refused()), (SIZES - 2, (104, 2)));
        succeed(device, 0, 1000);
        assert!(refuse(2000), "the place of a size that succeeded is free");
    }
}
