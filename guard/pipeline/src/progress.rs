//! The progress of a run, its monitor and its result.

use core::fmt;
use core::ops::ControlFlow;
use core::time::Duration;

/// The progress of a run, between two chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Items that went through all stages.
    pub items_done: u64,
    /// Items of the pipeline.
    pub items: u64,
    /// Bytes that the items done have in the caller's buffers per item; saturated.
    pub bytes_done: u64,
    /// The time since the run began.
    pub elapsed: Duration,
}

impl Progress {
    /// The time for the remaining items, at the rate so far; `None` before the first item is done.
    pub fn remaining(&self) -> Option<Duration> {
        let left = u128::from(self.items.saturating_sub(self.items_done));
        let nanoseconds = self.elapsed.as_nanos().checked_mul(left)?;
        let nanoseconds = nanoseconds.checked_div(self.items_done.into())?;
        u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
    }
}

/// Watches a run, and may cancel it. Implemented by closures that take the [`Progress`].
pub trait Monitor {
    /// Called between chunks. [`ControlFlow::Break`] cancels the remaining chunks, without an error.
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()>;

    /// Whether the run may allocate `bytes` of scratch. If not, it continues with smaller chunks, as if
    /// memory had run out.
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

impl fmt::Debug for dyn Monitor + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Monitor")
    }
}

/// The work that a run did, to its end or before a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PipelineRun {
    /// The chunk sizes that were tried, in order, from the plan's size to the size that fitted. Empty for a
    /// pipeline of zero items.
    pub tried: Vec<u64>,
    /// The number of chunks done.
    pub chunks: u64,
    /// Items of these chunks: the first items of the pipeline.
    pub items_done: u64,
    /// The most bytes of scratch at once.
    pub scratch_bytes: u64,
    /// Whether the monitor cancelled the run.
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
