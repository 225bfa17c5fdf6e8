//! Launch counters of a kernel.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The counters of a kernel, or of one of its handles.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Counters {
    launches: AtomicU64,
    refused: AtomicU64,
    fixed: AtomicU64,
    largest: [AtomicU32; 5],
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) launches: u64,
    pub(crate) refused: u64,
    /// Launches that `--fix` replaced by launches of a form.
    pub(crate) fixed: u64,
    /// The largest of each size, as `Launch::sizes` orders them.
    pub(crate) largest: [u32; 5],
}

impl Counters {
    pub(crate) const fn new() -> Self {
        // SAFETY: atomic numbers may be zero.
        unsafe { core::mem::zeroed() }
    }

    /// Counts an accepted launch.
    #[inline(always)]
    pub(crate) fn count(&self, sizes: [u32; 5]) {
        self.launches.fetch_add(1, Ordering::Relaxed);
        self.raise(sizes);
    }

    /// Counts a refused launch.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a launch that was made in parts.
    pub(crate) fn fix(&self) {
        self.fixed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, counts: &Counts) {
        self.launches.fetch_add(counts.launches, Ordering::Relaxed);
        self.refused.fetch_add(counts.refused, Ordering::Relaxed);
        self.fixed.fetch_add(counts.fixed, Ordering::Relaxed);
        self.raise(counts.largest);
    }

    pub(crate) fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self) -> Counts {
        self.each(|number| number.load(Ordering::Relaxed), |size| size.load(Ordering::Relaxed))
    }

    /// Reads the counters and sets them to zero.
    pub(crate) fn take(&self) -> Counts {
        self.each(
            |number| number.swap(0, Ordering::Relaxed),
            |size| size.swap(0, Ordering::Relaxed),
        )
    }

    fn each(&self, number: impl Fn(&AtomicU64) -> u64, size: impl Fn(&AtomicU32) -> u32) -> Counts {
        Counts {
            launches: number(&self.launches),
            refused: number(&self.refused),
            fixed: number(&self.fixed),
            largest: self.largest.each_ref().map(size),
        }
    }

    #[inline(always)]
    fn raise(&self, sizes: [u32; 5]) {
        for (most, size) in self.largest.iter().zip(sizes) {
            if size > most.load(Ordering::Relaxed) {
                most.fetch_max(size, Ordering::Relaxed);
            }
        }
    }
}

impl Counts {
    pub(crate) fn is_any(&self) -> bool {
        self.launches > 0 || self.refused > 0 || self.fixed > 0
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.launches += other.launches;
        self.refused += other.refused;
        self.fixed += other.fixed;
        self.largest.iter_mut().zip(other.largest).for_each(|(most, size)| *most = size.max(*most));
    }
}
