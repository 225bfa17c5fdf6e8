//! How far a run is, who watches it, and what it did.

use core::ops::ControlFlow;
use core::time::Duration;

/// How far a run is, between two chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Items that went through all stages.
    pub items_done: u64,
    /// Items of the pipeline.
    pub items: u64,
    /// Bytes of the caller's buffers per item, for the items done; saturated.
    pub bytes_done: u64,
    /// The time since the run began.
    pub elapsed: Duration,
}

impl Progress {
    /// The time for the items that are left, if they take as long as those done; `None` before the first.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let left = u128::from(self.items.saturating_sub(self.items_done));
        let nanoseconds = self.elapsed.as_nanos().checked_mul(left)?;
        let nanoseconds = nanoseconds.checked_div(self.items_done.into())?;
        u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
    }
}

/// Watches a run, and may end it. Implemented by closures that take the [`Progress`].
pub trait Monitor {
    /// Called between chunks. [`ControlFlow::Break`] cancels what is left, without an error.
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()>;

    /// Whether the run may allocate so many bytes of scratch. If not, it goes on as if memory had run out:
    /// with smaller chunks.
    fn may_allocate(&mut self, bytes: u64) -> bool {
        let _ = bytes;
        true
    }
}

impl<F: FnMut(&Progress) -> ControlFlow<()>> Monitor for F {
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        self(progress)
    }
}

/// What a run did, to its end or before a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PipelineRun {
    /// Items of a chunk of each plan that was tried, in order: the caller's first, the one that fitted
    /// last. Empty for a pipeline of zero items.
    pub tried: Vec<u64>,
    /// The number of chunks done.
    pub chunks: u64,
    /// Items of these chunks, the first ones of the pipeline.
    pub items_done: u64,
    /// The most bytes of scratch at once.
    pub scratch_bytes: u64,
    /// Whether the monitor cancelled it.
    pub cancelled: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_in_proportion_to_the_items_left() {
        let elapsed = Duration::from_secs(3);
        let at = |items_done| Progress { items_done, items: 40, bytes_done: 0, elapsed };
        assert_eq!(at(0).remaining(), None);
        assert_eq!(at(10).remaining(), Some(Duration::from_secs(9)));
        assert_eq!(at(40).remaining(), Some(Duration::ZERO));
        let progress = Progress { items: u64::MAX, elapsed: Duration::MAX, ..at(1) };
        assert_eq!(progress.remaining(), None);
    }
}
