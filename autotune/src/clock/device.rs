//! The clock of work on a CUDA device.

use core::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaEvent, CudaGraph, CudaSlice, CudaStream};
use gridguard::Guard;
use gridguard::cuda::{self, CudaErrorKind};
use gridguard::profile::{L2, Policy, Submission};

use super::delay::{Delay, WINDOW_NS};
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::measure::{Clock, Sample, Work};
use crate::stats::position;

/// Times work on one stream by events around it.
///
/// In stream order, a sample is a flush of the L2 cache or an untimed run, a delay, an event, the work, and an
/// event. The host submits the work during the delay. Under [`Submission::Graph`] the work is captured once
/// and launched as a graph.
///
/// The process is unusable after a failure of kind `Timeout`, because the stream is still busy, or `Crash`,
/// because the context is in error. If endless work fills the stream's queue, the host blocks in the driver
/// without a timeout. Only a [`crate::Remote`] can end that.
pub struct DeviceClock {
    stream: Arc<CudaStream>,
    policy: Policy,
    timeout: Duration,
    start: CudaEvent,
    end: CudaEvent,
    delay: Delay,
    /// Overwritten to evict the L2 cache, for a cold policy.
    flush: Option<CudaSlice<u8>>,
    /// Captured work, the most recently used first.
    graphs: Vec<(u64, CudaGraph)>,
    /// The shortest time of an empty kernel, if the clock yields.
    probe: Option<Duration>,
}

impl DeviceClock {
    /// A clock for work on `stream`, which must be in the guard's context.
    ///
    /// [`Submission::Graph`] needs a stream from `new_stream`, in a context with event tracking disabled:
    /// the null stream and cudarc's own events cannot be captured. The work must launch within
    /// [`capture_launches`](gridguard::cuda::capture_launches), because the clock keeps its graph and
    /// replays it.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if the policy asks for graphs and the stream cannot be captured, the delay kernel does
    /// not compile, or the flush buffer, twice the L2 cache, cannot be allocated. Also if cudarc's bindings are for
    /// CUDA 13 or later, but the driver is older than CUDA 12.8.
    pub fn new(guard: &Arc<Guard>, stream: Arc<CudaStream>, policy: Policy) -> Measured<Self> {
        let context = stream.context();
        if policy.submission == Submission::Graph && context.is_managing_stream_synchronization() {
            let message = "graph capture needs a context with event tracking disabled";
            return Err(MeasureFailure::new(FailureKind::Launch, message));
        }
        check_timing(sys::CUDA_VERSION, cuda::driver_version()?)?;
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
            probe: None,
            stream,
        })
    }

    /// Changes the timeout of a sample, 20 s by default.
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Yields to other processes: a check or a sample fails with [`FailureKind::Busy`] if an empty kernel then has to
    /// wait, because the device runs the work of another process. Work that takes longer than 5 ms fails too, because
    /// others would wait for it.
    #[must_use]
    pub const fn yielding(mut self) -> Self {
        self.probe = Some(Duration::MAX);
        self
    }

    fn submit(&mut self, id: u64, work: &mut Work<'_>) -> Measured<()> {
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
        delay.submit(WINDOW_NS)?;
        record(start, stream)?;
        run()?;
        record(end, stream)
    }

    /// Whether an empty kernel takes about as long as the quickest one so far. True unless the clock yields.
    fn is_undisturbed(&mut self) -> Measured<bool> {
        let Some(least) = self.probe else { return Ok(true) };
        let start = Instant::now();
        self.delay.submit(0)?;
        record(&self.end, &self.stream)?;
        self.wait()?;
        let took = start.elapsed();
        self.probe = Some(took.min(least));
        Ok(took <= least.saturating_mul(4).saturating_add(JITTER))
    }

    /// Waits for the last event, no longer than the timeout.
    fn wait(&self) -> Measured<()> {
        let since = Instant::now();
        loop {
            // This is the first call that reports errors of the submitted work.
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
    fn sample(&mut self, id: u64, work: &mut Work<'_>) -> Measured<Sample> {
        self.submit(id, work)?;
        self.wait()?;
        let time_ms = self.start.elapsed_ms(&self.end);
        let time_ms = time_ms.map_err(MeasureFailure::in_call("cuEventElapsedTime"))?;
        let clock_mhz = self.delay.clock_mhz()?;
        if self.probe.is_some() && time_ms > MOST_MS {
            let message =
                format!("took {time_ms} ms, longer than the {MOST_MS} ms that others may wait");
            return Err(MeasureFailure::new(FailureKind::Launch, message));
        }
        Ok(Sample { time_ns: f64::from(time_ms) * 1e6, clock_mhz, disturbed: false })
    }

    fn finish(&mut self) -> Measured<()> {
        record(&self.end, &self.stream)?;
        self.wait()?;
        // The host delays single kernels too, so a slow one says little.
        for _ in 0..PROBES {
            if self.is_undisturbed()? {
                return Ok(());
            }
        }
        let message = "another process uses the device: empty kernels wait for it";
        Err(MeasureFailure::new(FailureKind::Busy, message))
    }
}

impl fmt::Debug for DeviceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceClock").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// Whether cudarc, with `bindings` for this CUDA version, can time events on this driver. It would panic.
fn check_timing(bindings: u32, driver: i32) -> Measured<()> {
    // `cuEventElapsedTime_v2` is called by bindings for CUDA 13 and later, and exists since CUDA 12.8.
    if bindings < 13_000 || driver >= 12_080 {
        return Ok(());
    }
    let too_old = CudaErrorKind::TooOld { version: driver, oldest: 12_080 };
    let remedy = "or build for older drivers, with CUDARC_CUDA_VERSION=12000";
    Err(MeasureFailure::new(FailureKind::Launch, format!("{too_old}, {remedy}")))
}

fn record(event: &CudaEvent, stream: &CudaStream) -> Measured<()> {
    event.record(stream).map_err(MeasureFailure::in_call("cuEventRecord"))
}

/// Twice the L2 cache, which evicts everything under any replacement policy.
fn flush_buffer(guard: &Guard, stream: &Arc<CudaStream>) -> Measured<CudaSlice<u8>> {
    let bytes = position(guard.limits().l2_bytes.saturating_mul(2).max(1));
    stream.alloc_zeros(bytes).map_err(MeasureFailure::in_call("cuMemAllocAsync"))
}

/// The graph of `work`, captured at its first use.
fn graph_of<'a>(
    graphs: &'a mut Vec<(u64, CudaGraph)>,
    id: u64,
    stream: &Arc<CudaStream>,
    work: &mut Work<'_>,
) -> Measured<&'a CudaGraph> {
    let used = match graphs.iter().position(|(kept, _)| *kept == id) {
        Some(place) => graphs.remove(place),
        None => (id, capture(stream, work)?),
    };
    graphs.insert(0, used);
    graphs.truncate(MAX_GRAPHS);
    Ok(&graphs[0].1)
}

/// Captures what `work` submits to `stream` instead of running it.
fn capture(stream: &Arc<CudaStream>, work: &mut Work<'_>) -> Measured<CudaGraph> {
    // Thread-local: other threads may make calls that cannot be captured.
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .map_err(MeasureFailure::in_call("cuStreamBeginCapture"))?;
    let worked = work();
    // A capturing stream is unusable until the capture ends.
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    worked?;
    let graph = graph
        .map_err(MeasureFailure::in_call("cuStreamEndCapture or cuGraphInstantiate"))?
        .ok_or_else(|| MeasureFailure::new(FailureKind::Launch, "the captured graph is empty"))?;
    graph.upload().map_err(MeasureFailure::in_call("cuGraphUpload"))?;
    Ok(graph)
}

const TIMEOUT: Duration = Duration::from_secs(20);
/// How long the host polls without a pause.
const BUSY_WAIT: Duration = Duration::from_micros(500);
/// The pause between polls after that.
const PAUSE: Duration = Duration::from_micros(50);
/// The longest work of a clock that yields.
const MOST_MS: f32 = 5.0;
/// Empty kernels in a row that must wait.
const PROBES: u32 = 2;
/// How much longer an empty kernel may take on a busy host.
const JITTER: Duration = Duration::from_micros(50);
/// Graphs kept at a time: enough for a round over the candidates of a usual search.
const MAX_GRAPHS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_that_time_events_by_a_newer_function_than_the_driver_has_are_refused() {
        for (bindings, driver) in [(12_000, 12_000), (12_090, 12_040), (13_040, 12_080)] {
            assert_eq!(check_timing(bindings, driver), Ok(()));
        }
        let error = check_timing(13_040, 12_040).expect_err("too old");
        assert_eq!(
            error.to_string(),
            "the driver supports CUDA 12.4, at least 12.8 is needed: update the driver, or build for older \
             drivers, with CUDARC_CUDA_VERSION=12000"
        );
    }
}
