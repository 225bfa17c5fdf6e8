//! What the bench `record` measures; not part of the public interface.

use core::panic::Location;
use std::sync::Arc;

use super::history::{self, ContextHistory};
use crate::launch::valid::ValidLaunch;
use crate::plan::chunks::Chunk;
use crate::record::counters::Counters;

/// The records of a context that does not exist, and the counters of a guard.
#[derive(Debug)]
pub struct LaunchRecords {
    history: Arc<ContextHistory>,
    kernel: u32,
    counters: Counters,
}

impl LaunchRecords {
    /// No records yet.
    #[must_use]
    pub fn new() -> Self {
        let history = ContextHistory::of(core::ptr::null_mut());
        let kernel = history.number_of("bench");
        Self { history, kernel, counters: Counters::new() }
    }

    /// Records `launch` on the stream with the handle `stream`, as a guard does.
    #[inline]
    #[track_caller]
    pub fn record(&self, stream: usize, chunk: &Chunk, launch: &ValidLaunch) {
        let stream = core::ptr::without_provenance_mut(stream);
        self.history.record(self.kernel, stream, chunk, launch, 1, Location::caller());
    }

    /// Counts a plan of one launch, as a guard does.
    #[inline]
    pub fn count(&self) {
        self.counters.ran(1);
    }
}

impl Default for LaunchRecords {
    fn default() -> Self {
        Self::new()
    }
}

/// The clock of the records.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    history::now_ns()
}
