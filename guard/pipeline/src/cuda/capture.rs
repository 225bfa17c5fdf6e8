//! Guards a run against the caller's code, which may begin captures or change the current context.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::cuda::streams::{Capture, OnStreams};
use crate::error::{Error, StageResult};
use crate::progress::PipelineRun;
use gridguard::cuda::MemoryUses;
use gridguard::cuda::schedule::{Scheduler, may_capture, while_capturing};

impl<'r> OnStreams<'r, '_> {
    /// The streams that have work.
    fn streams(&self) -> impl Iterator<Item = &'r Arc<CudaStream>> + use<'r> {
        core::iter::once(self.stream).chain(self.more.iter().take(self.forked))
    }

    /// Whether nobody promised to keep kernels and memory for a graph.
    fn refuses_captures(&self) -> bool {
        self.capture != Capture::Begun && !may_capture()
    }

    /// Call before the caller's code, a stage or a monitor. Records events after the work so far.
    pub(crate) fn leave(&mut self) -> StageResult {
        self.is_left = true;
        if !self.refuses_captures() {
            return Ok(());
        }
        for (place, stream) in self.streams().enumerate() {
            match self.marks.get(place) {
                Some(mark) => mark.record(stream)?,
                None => self.marks.push(stream.record_event(None)?),
            }
        }
        Ok(())
    }

    /// Call after the caller's code. Makes the context current, and discards captures that the code began.
    pub(crate) fn resume(&mut self) -> StageResult {
        if !core::mem::take(&mut self.is_left) {
            return Ok(());
        }
        self.scheduler.bind()?;
        let mut captured = false;
        if !self.refuses_captures() {
            return Ok(());
        }
        for stream in self.streams() {
            if matches!(self.scheduler.is_captured(stream), Ok(true)) {
                captured = true;
                self.is_stuck |= !self.scheduler.discard_capture(stream)?;
            }
        }
        if self.is_stuck {
            self.wait_for_marks();
        }
        if captured { Err(Error::captured().into()) } else { Ok(()) }
    }

    /// Waits for all work, because the capture of a stream cannot be ended here.
    #[cold]
    fn wait_for_marks(&mut self) {
        while_capturing(|| {
            for (stream, mark) in self.streams().zip(&self.marks) {
                if stream.synchronize().is_err() {
                    stream.context().record_err(mark.synchronize());
                }
            }
        });
        self.forked = 0;
    }

    /// Refuses more work on a stream that another thread began to capture.
    pub(crate) fn check_capture(&self, lane: usize) -> StageResult {
        let stream = self.stream_of(lane);
        if self.refuses_captures() && matches!(self.scheduler.is_captured(stream), Ok(true)) {
            self.scheduler.end_capture(stream)?;
            return Err(Error::captured().into());
        }
        Ok(())
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
