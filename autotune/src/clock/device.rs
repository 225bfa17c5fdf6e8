//! The clock of work on a CUDA device.

use core::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaEvent, CudaGraph, CudaSlice, CudaStream};
use gridguard::Guard;
use gridguard::profile::{L2, Policy, Submission};

use super::delay::Delay;
use crate::failure::{FailureKind, MeasureFailure};
use crate::measure::{Clock, Sample, WorkId};
use crate::stats::position;

/// Times work on a stream by events around it.
///
/// A sample is, in stream order: what the policy asks for first (a flush of the L2 cache, or the
/// work itself), a delay during which the work is submitted, an event, the work, an event. Under
/// [`Submission::Graph`] the work is captured once and launched as a graph.
///
/// All of the work must be on this one stream. After a failure of kind `Timeout` the stream is
/// still busy, after one of kind `Crash` its context is in error: the process is unusable. If work
/// that does not finish fills the stream's queue, the host blocks in the driver, where no timeout
/// applies; only a [`crate::Remote`] can end that.
pub struct DeviceClock {
    stream: Arc<CudaStream>,
    policy: Policy,
    timeout: Duration,
    start: CudaEvent,
    end: CudaEvent,
    delay: Delay,
    /// Overwritten to evict everything else from the L2 cache, if it must be cold.
    flush: Option<CudaSlice<u8>>,
    /// Graphs of captured work, the most recently used first.
    graphs: Vec<(WorkId, CudaGraph)>,
}

impl DeviceClock {
    /// A clock for work on `stream`, which must be in the guard's context.
    ///
    /// [`Submission::Graph`] needs a stream made with `new_stream`, in a context with event
    /// tracking disabled: neither the null stream nor cudarc's own events can be captured. The work's
    /// launches must be made within [`capture_launches`](gridguard::cuda::capture_launches): the clock
    /// keeps the graph of work and launches it whenever the same work is sampled again.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if the policy asks for graphs and the stream cannot be captured, the
    /// delay kernel does not compile, or the flush buffer, twice the L2 cache, cannot be allocated.
    pub fn new(
        guard: &Arc<Guard>,
        stream: Arc<CudaStream>,
        policy: Policy,
    ) -> Result<Self, MeasureFailure> {
        let context = stream.context();
        if policy.submission == Submission::Graph && context.is_managing_stream_synchronization() {
            let message = "graph capture needs a context with event tracking disabled";
            return Err(MeasureFailure::new(FailureKind::Launch, message));
        }
        let event = || {
            let event = context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
            event.map_err(MeasureFailure::in_call("cuEventCreate"))
        };
        Ok(Self {
            policy,
            timeout: TIMEOUT,
            start: event()?,
            end: event()?,
            delay: Delay::new(Arc::clone(guard), Arc::clone(&stream))?,
            flush: match policy.l2 {
                L2::Cold => Some(flush_buffer(guard, &stream)?),
                L2::Hot => None,
            },
            graphs: Vec::new(),
            stream,
        })
    }

    /// The same clock with another timeout for a sample than 20 s.
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Submits a whole sample.
    fn submit(
        &mut self,
        id: WorkId,
        work: &mut dyn FnMut() -> Result<(), MeasureFailure>,
    ) -> Result<(), MeasureFailure> {
        let Self { stream, policy, start, end, delay, flush, graphs, .. } = self;
        let graph = match policy.submission {
            Submission::Graph => Some(graph_of(graphs, id, stream, work)?),
            Submission::Eager => None,
        };
        let mut run = || match graph {
            Some(graph) => graph.launch().map_err(MeasureFailure::in_call("cuGraphLaunch")),
            None => work(),
        };
        match flush {
            Some(flush) => {
                stream.memset_zeros(flush).map_err(MeasureFailure::in_call("cuMemsetD8Async"))?;
            }
            None => run()?,
        }
        delay.submit()?;
        record(start, stream)?;
        run()?;
        record(end, stream)
    }

    /// Waits for the last event, no longer than the timeout.
    fn wait(&self) -> Result<(), MeasureFailure> {
        let since = Instant::now();
        loop {
            // Any error here comes from the submitted work: this is the first call to report it.
            let is_done = self.end.try_is_complete().map_err(|error| MeasureFailure {
                kind: FailureKind::Crash,
                ..MeasureFailure::in_call("cuEventQuery")(error)
            })?;
            let waited = since.elapsed();
            if is_done {
                return Ok(());
            }
            if waited > self.timeout {
                let message = format!("did not finish within {:?}", self.timeout);
                return Err(MeasureFailure::new(FailureKind::Timeout, message));
            }
            if waited > BUSY_WAIT {
                thread::sleep(PAUSE);
            }
        }
    }
}

impl Clock for DeviceClock {
    fn sample(
        &mut self,
        id: WorkId,
        work: &mut dyn FnMut() -> Result<(), MeasureFailure>,
    ) -> Result<Sample, MeasureFailure> {
        self.submit(id, work)?;
        self.wait()?;
        let time_ms = self.start.elapsed_ms(&self.end);
        let time_ms = time_ms.map_err(MeasureFailure::in_call("cuEventElapsedTime"))?;
        let clock_mhz = self.delay.clock_mhz()?;
        Ok(Sample { time_ns: f64::from(time_ms) * 1e6, clock_mhz })
    }

    fn finish(&mut self) -> Result<(), MeasureFailure> {
        record(&self.end, &self.stream)?;
        self.wait()
    }
}

impl fmt::Debug for DeviceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceClock").field("policy", &self.policy).finish_non_exhaustive()
    }
}

fn record(event: &CudaEvent, stream: &CudaStream) -> Result<(), MeasureFailure> {
    event.record(stream).map_err(MeasureFailure::in_call("cuEventRecord"))
}

/// Twice the L2 cache, which evicts everything else whatever its replacement policy.
fn flush_buffer(guard: &Guard, stream: &Arc<CudaStream>) -> Result<CudaSlice<u8>, MeasureFailure> {
    let bytes = position(guard.limits().l2_bytes.saturating_mul(2).max(1));
    stream.alloc_zeros(bytes).map_err(MeasureFailure::in_call("cuMemAllocAsync"))
}

/// The graph of `work`, captured now unless it is kept from before.
fn graph_of<'a>(
    graphs: &'a mut Vec<(WorkId, CudaGraph)>,
    id: WorkId,
    stream: &Arc<CudaStream>,
    work: &mut dyn FnMut() -> Result<(), MeasureFailure>,
) -> Result<&'a CudaGraph, MeasureFailure> {
    let used = match graphs.iter().position(|(kept, _)| *kept == id) {
        Some(place) => graphs.remove(place),
        None => (id, capture(stream, work)?),
    };
    graphs.insert(0, used);
    graphs.truncate(MAX_GRAPHS);
    Ok(&graphs[0].1)
}

/// Captures what `work` submits to `stream` instead of running it.
fn capture(
    stream: &Arc<CudaStream>,
    work: &mut dyn FnMut() -> Result<(), MeasureFailure>,
) -> Result<CudaGraph, MeasureFailure> {
    // Thread-local: other threads may make calls that cannot be captured.
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .map_err(MeasureFailure::in_call("cuStreamBeginCapture"))?;
    let worked = work();
    // Ended in any case: a capturing stream is unusable otherwise.
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    worked?;
    let graph = graph
        .map_err(MeasureFailure::in_call("cuStreamEndCapture or cuGraphInstantiate"))?
        .ok_or_else(|| MeasureFailure::new(FailureKind::Launch, "the captured graph is empty"))?;
    graph.upload().map_err(MeasureFailure::in_call("cuGraphUpload"))?;
    Ok(graph)
}

/// The default timeout of a sample, far longer than a launch takes.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long the host polls without a pause, so that short samples follow each other at once.
const BUSY_WAIT: Duration = Duration::from_micros(500);
/// The pause between polls after that.
const PAUSE: Duration = Duration::from_micros(50);
/// Graphs kept at a time: those of a round over the candidates of a usual search. Capturing one
/// again takes as long as submitting its work.
const MAX_GRAPHS: usize = 64;
