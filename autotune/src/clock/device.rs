//! The clock of work on a CUDA device.

use core::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream};
use gridguard::Guard;
use gridguard::profile::{L2, Policy, Submission};

use super::delay::Delay;
use super::graphs::Graphs;
use super::{Clock, WorkId};
use crate::measurer::{FailureKind, MeasureFailure};
use crate::sample::Sample;

/// Times work on a stream by events around all of it.
///
/// A sample is, on the stream: what the policy wants before (a flush of the L2 cache, or the work
/// itself), a delay under which the work is submitted, an event, the work, an event. As a graph the
/// work is captured once and launched as such.
///
/// All of the work must be on this one stream. After a failure of kind `Timeout` the stream is still
/// busy, after one of kind `Crash` its context is in error: the process is of no further use. Work
/// of more launches than the stream has room for, behind one that does not end, keeps the host in
/// the driver, where no timeout reaches it: only a [`crate::Remote`] ends that.
pub struct DeviceClock {
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    policy: Policy,
    timeout: Duration,
    start: CudaEvent,
    end: CudaEvent,
    delay: Delay,
    /// What is overwritten to drive all else from the cache, where it is to be cold.
    flush: Option<CudaSlice<u8>>,
    graphs: Graphs,
}

impl DeviceClock {
    /// A clock of `stream`, which is in the guard's context.
    ///
    /// For [`Submission::Graph`] the stream is one made with `new_stream`, in a context whose event
    /// tracking is disabled: the null stream is not captured, nor are cudarc's own events.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] where the stream cannot be captured and the policy wants it, the delay kernel does
    /// not compile, or there is no memory for the flush, twice the L2 cache.
    pub fn new(
        guard: &Arc<Guard>,
        stream: Arc<CudaStream>,
        policy: Policy,
    ) -> Result<Self, MeasureFailure> {
        let context = stream.context();
        if policy.submission == Submission::Graph && context.is_managing_stream_synchronization() {
            let message = "work is captured only in a context whose event tracking is disabled";
            return Err(MeasureFailure::new(FailureKind::Launch, message));
        }
        let event = || {
            context
                .new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
                .map_err(|error| MeasureFailure::of_driver("cuEventCreate", error))
        };
        let (start, end) = (event()?, event()?);
        let flush = match policy.l2 {
            L2::Cold => Some(flush_memory(guard, &stream)?),
            L2::Hot => None,
        };
        let delay = Delay::new(guard, &stream)?;
        let (guard, graphs) = (Arc::clone(guard), Graphs::default());
        Ok(Self { guard, stream, policy, timeout: TIMEOUT, start, end, delay, flush, graphs })
    }

    /// The same clock, with another timeout than 20 s for a sample.
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
        let Self { guard, stream, policy, start, end, delay, flush, graphs, .. } = self;
        let graph = match policy.submission {
            Submission::Graph => Some(graphs.of(id, stream, work)?),
            Submission::Eager => None,
        };
        let mut run = || match graph {
            Some(graph) => {
                graph.launch().map_err(|error| MeasureFailure::of_driver("cuGraphLaunch", error))
            }
            None => work(),
        };
        match flush {
            Some(flush) => stream
                .memset_zeros(flush)
                .map_err(|error| MeasureFailure::of_driver("cuMemsetD8Async", error))?,
            None => run()?,
        }
        delay.submit(guard, stream)?;
        record(start, stream)?;
        run()?;
        record(end, stream)
    }

    /// Waits for the event at the end, no longer than the timeout.
    fn wait(&self) -> Result<(), MeasureFailure> {
        let since = Instant::now();
        loop {
            let done = self.end.try_is_complete();
            // Whatever it is, it came of what was submitted, and the driver tells it here first.
            let done = done.map_err(|error| MeasureFailure {
                kind: FailureKind::Crash,
                ..MeasureFailure::of_driver("cuEventQuery", error)
            })?;
            let waited = since.elapsed();
            if done {
                return Ok(());
            }
            if waited > self.timeout {
                let message = format!("it did not end within {:?}", self.timeout);
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
        let time_ms = self
            .start
            .elapsed_ms(&self.end)
            .map_err(|error| MeasureFailure::of_driver("cuEventElapsedTime", error))?;
        let clock_mhz = self.delay.clock_mhz(&self.stream)?;
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
    event.record(stream).map_err(|error| MeasureFailure::of_driver("cuEventRecord", error))
}

/// Twice the L2 cache: whatever its policy of replacement, nothing else is left in it.
fn flush_memory(guard: &Guard, stream: &Arc<CudaStream>) -> Result<CudaSlice<u8>, MeasureFailure> {
    let bytes = guard.limits().l2_bytes.saturating_mul(2).max(1);
    let bytes = usize::try_from(bytes).map_err(|_| {
        MeasureFailure::new(FailureKind::Launch, "the L2 cache is larger than memory")
    })?;
    stream.alloc_zeros(bytes).map_err(|error| MeasureFailure::of_driver("cuMemAllocAsync", error))
}

/// The longest time of a sample, unless another is asked for: what a tuner waits for, and far more
/// than a launch takes.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long the host asks without a pause: short samples follow each other at once.
const BUSY_WAIT: Duration = Duration::from_micros(500);
/// Between questions after that.
const PAUSE: Duration = Duration::from_micros(50);
