//! Counters of what a profile answered. Relaxed atomics: no lock, a few nanoseconds each.

use core::sync::atomic::{AtomicU64, Ordering};

use super::matching::MatchKind;

#[derive(Debug, Default)]
pub(super) struct Counters {
    exact: AtomicU64,
    bucket: AtomicU64,
    neighbour: AtomicU64,
    default: AtomicU64,
    degraded: AtomicU64,
    refused: AtomicU64,
}

/// What a profile has answered so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LookupCounts {
    /// By an entry of the same sizes.
    pub exact: u64,
    /// By an entry of the same powers of two.
    pub bucket: u64,
    /// By an entry within an octave.
    pub neighbour: u64,
    /// By none.
    pub default: u64,
    /// Of the first three, by an entry from another major version of the driver.
    pub degraded: u64,
    /// Of the first three, by an entry that was illegal when it was validated.
    pub refused: u64,
}

impl Counters {
    #[inline]
    pub(super) fn answered(&self, kind: MatchKind, degraded: bool) {
        let counter = match kind {
            MatchKind::Exact => &self.exact,
            MatchKind::Bucket => &self.bucket,
            MatchKind::Neighbour => &self.neighbour,
            MatchKind::Default => &self.default,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if degraded {
            self.degraded.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[cold]
    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> LookupCounts {
        let Self { exact, bucket, neighbour, default, degraded, refused } = self;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LookupCounts {
            exact: load(exact),
            bucket: load(bucket),
            neighbour: load(neighbour),
            default: load(default),
            degraded: load(degraded),
            refused: load(refused),
        }
    }
}
