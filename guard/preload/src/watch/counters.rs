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
        Counts {
            launches: self.launches(),
            refused: self.refused.load(Ordering::Relaxed),
            fixed: self.fixed.load(Ordering::Relaxed),
            largest: self.largest.each_ref().map(|size| size.load(Ordering::Relaxed)),
        }
    }

    /// Reads the counters and sets them to zero.
    pub(crate) fn take(&self) -> Counts {
        let counts = self.read();
        for number in [&self.launches, &self.refused, &self.fixed] {
            number.store(0, Ordering::Relaxed);
        }
        self.largest.iter().for_each(|size| size.store(0, Ordering::Relaxed));
        counts
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
