//! Work captured as graphs.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};

use super::WorkId;
use crate::measurer::{FailureKind, MeasureFailure};

/// Graphs of the work that was timed last.
#[derive(Default)]
pub(super) struct Graphs {
    /// The one used last at the end.
    kept: Vec<(WorkId, CudaGraph)>,
}

impl Graphs {
    /// The graph of `work`: captured now, where it is not kept from before.
    pub(super) fn of(
        &mut self,
        id: WorkId,
        stream: &Arc<CudaStream>,
        work: &mut dyn FnMut() -> Result<(), MeasureFailure>,
    ) -> Result<&CudaGraph, MeasureFailure> {
        let place = self.kept.iter().position(|(kept, _)| *kept == id);
        let entry = match place {
            Some(place) => self.kept.remove(place),
            None => (id, capture(stream, work)?),
        };
        if self.kept.len() >= MOST_KEPT {
            self.kept.remove(0);
        }
        Ok(&self.kept.push_mut(entry).1)
    }
}

/// Captures what `work` submits to `stream`, instead of running it.
fn capture(
    stream: &Arc<CudaStream>,
    work: &mut dyn FnMut() -> Result<(), MeasureFailure>,
) -> Result<CudaGraph, MeasureFailure> {
    // Calls of other threads that cannot be captured are none of this stream's business.
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .map_err(|error| MeasureFailure::of_driver("cuStreamBeginCapture", error))?;
    let worked = work();
    // Ended in any case: a stream under capture is good for nothing else.
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    worked?;
    let graph = graph
        .map_err(|error| {
            MeasureFailure::of_driver("cuStreamEndCapture or cuGraphInstantiate", error)
        })?
        .ok_or_else(|| MeasureFailure::new(FailureKind::Launch, "nothing was captured"))?;
    graph.upload().map_err(|error| MeasureFailure::of_driver("cuGraphUpload", error))?;
    Ok(graph)
}

/// Graphs kept at the same time: those of a round over the candidates of a usual search. Capturing
/// one anew takes as long as submitting it.
const MOST_KEPT: usize = 64;
