//! Launch counters of a kernel.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::driver::request::Largest;

/// The counters of a kernel, or of one of its handles.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Counters {
    launches: AtomicU64,
    refused: AtomicU64,
    grid: [AtomicU32; 3],
    threads: AtomicU32,
    shared_bytes: AtomicU32,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) launches: u64,
    pub(crate) refused: u64,
    /// Launches that `--fix` replaced by launches of a form.
    pub(crate) fixed: u64,
    pub(crate) largest: Largest,
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            launches: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            grid: [const { AtomicU32::new(0) }; 3],
            threads: AtomicU32::new(0),
            shared_bytes: AtomicU32::new(0),
        }
    }

    /// Counts an accepted launch.
    #[inline(always)]
    pub(crate) fn count(&self, largest: Largest) {
        self.launches.fetch_add(1, Ordering::Relaxed);
        self.raise(largest);
    }

    /// Counts a refused launch.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, counts: &Counts) {
        self.launches.fetch_add(counts.launches, Ordering::Relaxed);
        self.refused.fetch_add(counts.refused, Ordering::Relaxed);
        self.raise(counts.largest);
    }

    pub(crate) fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// The counts. `fixed` is 0, because [`Known`](crate::watch::known::Known) counts fixed launches.
    pub(crate) fn read(&self) -> Counts {
        self.each(|number| number.load(Ordering::Relaxed), |size| size.load(Ordering::Relaxed))
    }

    /// As [`Self::read`]; counts from zero again.
    pub(crate) fn take(&self) -> Counts {
        self.each(
            |number| number.swap(0, Ordering::Relaxed),
            |size| size.swap(0, Ordering::Relaxed),
        )
    }

    fn each(&self, number: impl Fn(&AtomicU64) -> u64, size: impl Fn(&AtomicU32) -> u32) -> Counts {
        let Self { launches, refused, grid: [x, y, z], threads, shared_bytes } = self;
        Counts {
            launches: number(launches),
            refused: number(refused),
            fixed: 0,
            largest: Largest {
                grid: [size(x), size(y), size(z)],
                threads: size(threads),
                shared_bytes: size(shared_bytes),
            },
        }
    }

    #[inline(always)]
    fn raise(&self, Largest { grid, threads, shared_bytes }: Largest) {
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
}

impl Counts {
    pub(crate) fn is_any(&self) -> bool {
        self.launches > 0 || self.refused > 0 || self.fixed > 0
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let Self { launches, refused, fixed, largest: Largest { grid, threads, shared_bytes } } =
            other;
        self.launches += launches;
        self.refused += refused;
        self.fixed += fixed;
        for (most, blocks) in self.largest.grid.iter_mut().zip(grid) {
            *most = (*most).max(*blocks);
        }
        self.largest.threads = self.largest.threads.max(*threads);
        self.largest.shared_bytes = self.largest.shared_bytes.max(*shared_bytes);
    }
}
