//! The traits of a measurement: a workload to run, a clock to time it, and a measurer of candidates.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::candidate::{Candidate, LaunchConfig};
use crate::failure::{FailureKind, MeasureFailure, Measured};

/// Which launches of a plan are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Portion {
    /// All launches, one after another.
    Sequence,
    /// Only the launch with the most items, which need not be the first or the last. For a pipeline, its
    /// first chunks in flight.
    LargestLaunch,
}

/// One measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Nanoseconds; positive and finite.
    pub time_ns: f64,
    /// The SM clock during the sample in MHz, if the device reports it.
    pub clock_mhz: Option<f64>,
    /// Whether other processes held the processor meanwhile; false if unknown.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub disturbed: bool,
}

impl Sample {
    /// Fails unless the time is positive and finite.
    pub(crate) fn checked(self) -> Measured<Self> {
        let Self { time_ns, .. } = self;
        if time_ns.is_finite() && time_ns > 0.0 {
            return Ok(self);
        }
        let message = format!("measured {time_ns} ns: is there anything to launch?");
        Err(MeasureFailure::new(FailureKind::Launch, message))
    }

    /// Also fails if the time is longer than the whole `request` took.
    pub(crate) fn checked_within(self, request: Duration) -> Measured<Self> {
        let Self { time_ns, .. } = self.checked()?;
        let request_ns = request.as_secs_f64() * 1e9;
        if time_ns <= request_ns * (1.0 + CLOCK_DEVIATION) {
            return Ok(self);
        }
        let message = format!("measured {time_ns} ns in a request that took {request_ns} ns");
        Err(MeasureFailure::new(FailureKind::Launch, message))
    }
}

/// How much faster one clock may run than another. Both are calibrated to some parts per million.
pub(crate) const CLOCK_DEVIATION: f64 = 0.01;

/// A problem with its memory, on a device or on the host.
///
/// [`InProcess`](crate::InProcess) prepares each candidate, then checks it, then launches it once per
/// sample, interleaved with other candidates. The default is checked first, so its output can serve as
/// the expected output of the others. Only in a process that replaces a crashed one, another candidate
/// may come first.
pub trait Workload {
    /// The launch with each set of parameters worth measuring, the default first. A [`Candidate`] names
    /// its configuration by these parameters, so no two may have the same. None by default, for a workload
    /// that lists its candidates itself.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if even the default cannot be prepared.
    fn configurations(&mut self) -> Measured<Vec<LaunchConfig>> {
        Ok(Vec::new())
    }

    /// Compiles, plans and allocates: all untimed work.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if this candidate cannot run.
    fn prepare(&mut self, candidate: &Candidate) -> Measured<()>;

    /// Submits the launches of a prepared candidate, or only the largest of them. Returns before they have
    /// run on a device, and afterwards on the host. All of this is timed.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if a launch is rejected.
    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Measured<()>;

    /// Overwrites the output, runs the candidate once, and compares the whole output with the default's,
    /// which was compared with a reference.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if the output is wrong or the candidate does not run.
    fn check(&mut self, candidate: &Candidate) -> Measured<()>;
}

/// Checks and times candidates of one problem, on one device.
pub trait Measurer {
    /// As [`Workload::configurations`].
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if even the default cannot be prepared.
    fn configurations(&mut self) -> Measured<Vec<LaunchConfig>> {
        Ok(Vec::new())
    }

    /// Prepares a candidate, runs it once and compares its output. Called once per candidate,
    /// before any sample.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] excludes this candidate; the search continues with the others.
    fn check(&mut self, candidate: &Candidate) -> Measured<()>;

    /// Times a checked candidate once.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    fn sample(&mut self, candidate: &Candidate, portion: Portion) -> Measured<Sample>;
}

impl<M: Measurer + ?Sized> Measurer for &mut M {
    fn configurations(&mut self) -> Measured<Vec<LaunchConfig>> {
        (**self).configurations()
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        (**self).check(candidate)
    }

    fn sample(&mut self, candidate: &Candidate, portion: Portion) -> Measured<Sample> {
        (**self).sample(candidate, portion)
    }
}

/// Work that a clock times.
pub type Work<'a> = dyn FnMut() -> Measured<()> + 'a;

/// Times work on a device or on the host.
pub trait Clock {
    /// Times `work` once, which submits to a device or runs on the host. A cache flush, a warm-up run or a
    /// graph capture, by the policy, is not timed.
    ///
    /// Calls with the same `id` must pass the same work. The clock may call it several times, or replay an
    /// earlier capture instead.
    ///
    /// # Errors
    ///
    /// The failure of `work`; [`FailureKind::Timeout`](crate::FailureKind) if it does not finish
    /// and [`FailureKind::Crash`](crate::FailureKind) if it breaks the context. After either the
    /// process is unusable.
    fn sample(&mut self, id: u64, work: &mut Work<'_>) -> Measured<Sample>;

    /// Waits for all submitted work.
    ///
    /// # Errors
    ///
    /// As [`Self::sample`].
    fn finish(&mut self) -> Measured<()>;
}
