//! Guards a run against the caller's code, which may begin captures or change the current context.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::cuda::streams::{Capture, OnStreams};
use crate::error::{Error, StageResult};
use crate::progress::PipelineRun;
use gridguard::cuda::MemoryUses;
use gridguard::cuda::schedule::{Scheduler, may_capture};

impl<'r> OnStreams<'r, '_> {
    /// The streams that have work.
    fn streams(&self) -> impl Iterator<Item = &'r Arc<CudaStream>> + use<'r> {
        core::iter::once(self.stream).chain(self.more.iter().take(self.forked))
    }

    /// Whether nobody promised to keep kernels and memory for a graph.
    fn refuses_captures(&self) -> bool {
        self.capture != Capture::Begun && !may_capture()
    }

    /// Call before the caller's code, a stage or a monitor.
    pub(crate) const fn leave(&mut self) {
        self.is_left = true;
    }

    /// Call after the caller's code. Makes the context current, and discards captures that the code began.
    pub(crate) fn resume(&mut self) -> StageResult {
        if !core::mem::take(&mut self.is_left) {
            return Ok(());
        }
        self.scheduler.bind()?;
        let mut resumed = Ok(());
        for stream in self.streams() {
            let checked = self.check_capture(stream);
            resumed = resumed.and(checked);
        }
        resumed
    }

    /// Refuses more work on a stream that other code began to capture.
    pub(crate) fn check_capture(&mut self, stream: &CudaStream) -> StageResult {
        if !self.refuses_captures() || !matches!(self.scheduler.is_captured(stream), Ok(true)) {
            return Ok(());
        }
        if !self.scheduler.discard_capture(stream)? {
            // All work is done.
            (self.is_stuck, self.forked) = (true, 0);
        }
        Err(Error::captured().into())
    }

    /// Ends the run and the uses of its memory, and counts its launches.
    pub(crate) fn end(
        mut self,
        uses: &MemoryUses<'_>,
        ran: Result<PipelineRun, Error>,
    ) -> Result<PipelineRun, Error> {
        let resumed = self.resume();
        let (scheduler, launches, is_stuck) = (self.scheduler, self.launches, self.is_stuck);
        // Joins the streams.
        drop(self);
        if is_stuck {
            uses.done();
        }
        let ran = resumed.map_err(|_| Error::captured()).and(ran);
        scheduler.count(launches, ran.is_ok());
        end_uses(&scheduler, uses).and(ran)
    }
}

/// Ends the uses after the observers of the launches, which may have begun a capture or changed the context.
pub(crate) fn end_uses(scheduler: &Scheduler<'_>, uses: &MemoryUses<'_>) -> Result<(), Error> {
    let bound = scheduler.bind();
    if uses.end() {
        return Err(Error::captured());
    }
    bound.map_err(Error::device)
}
