//! Guards a run against the caller's code, which may begin captures or change the current context.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::cuda::arguments::uses::MemoryUses;
use crate::cuda::driver::library::handle;
use crate::cuda::launch::capture::{
    RelaxedCapture, discard, is_captured, may_capture, try_discard,
};
use crate::cuda::pipeline::run::{Capture, OnStreams};
use crate::pipeline::error::{MemoryError, RunError, StageError};
use crate::pipeline::progress::PipelineRun;

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
    pub(super) fn leave(&mut self) -> Result<(), StageError> {
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
    pub(super) fn resume(&mut self) -> Result<(), StageError> {
        if !core::mem::take(&mut self.is_left) {
            return Ok(());
        }
        self.driver.bind(self.stream.context().cu_ctx().cast())?;
        let (driver, mut captured) = (self.driver, false);
        if !self.refuses_captures() {
            return Ok(());
        }
        for stream in self.streams() {
            // SAFETY: the stream is borrowed, and its context current.
            if unsafe { is_captured(driver, handle(stream)) } {
                captured = true;
                // SAFETY: as above.
                self.is_stuck |= unsafe { !try_discard(driver, handle(stream)) };
            }
        }
        if self.is_stuck {
            self.wait_for_marks();
        }
        if captured { Err(MemoryError::Captured.into()) } else { Ok(()) }
    }

    /// Waits for all work, because the capture of a stream cannot be ended here.
    #[cold]
    fn wait_for_marks(&mut self) {
        let _relaxed = RelaxedCapture::begin(self.driver);
        for (stream, mark) in self.streams().zip(&self.marks) {
            if stream.synchronize().is_err() {
                stream.context().record_err(mark.synchronize());
            }
        }
        self.forked = 0;
    }

    /// Refuses more work on a stream that another thread began to capture.
    pub(super) fn check_capture(&self, lane: usize) -> Result<(), StageError> {
        let stream = handle(self.stream_of(lane));
        // SAFETY: the stream is borrowed, and its context current.
        if self.refuses_captures() && unsafe { is_captured(self.driver, stream) } {
            // SAFETY: as above.
            unsafe { discard(self.driver, stream) };
            return Err(MemoryError::Captured.into());
        }
        Ok(())
    }

    /// Ends the run and the uses of its memory. Returns its result and the number of launches.
    pub(super) fn end(
        mut self,
        uses: &MemoryUses<'_>,
        ran: Result<PipelineRun, RunError>,
    ) -> (Result<PipelineRun, RunError>, u64) {
        let resumed = self.resume();
        let (launches, is_stuck) = (self.launches, self.is_stuck);
        // Joins the streams.
        drop(self);
        if is_stuck {
            uses.done();
        }
        let captured = uses.end() || resumed.is_err();
        let ran = if captured { ran.and(Err(MemoryError::Captured.into())) } else { ran };
        (ran, launches)
    }
}
