//! The traits of a measurement: what runs, what times it, and what checks and samples candidates.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::candidate::{Candidate, LaunchConfig};
use crate::failure::{FailureKind, MeasureFailure};

/// Which launches of a plan are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Portion {
    /// All launches, one after another.
    Sequence,
    /// Only the launch with the most items, which need not be the first or the last; of a pipeline, its
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
}

impl Sample {
    /// The sample, unless its time is not positive or not finite.
    pub(crate) fn checked(self) -> Result<Self, MeasureFailure> {
        let Self { time_ns, .. } = self;
        if time_ns.is_finite() && time_ns > 0.0 {
            return Ok(self);
        }
        let message = format!("measured {time_ns} ns: is there anything to launch?");
        Err(MeasureFailure::new(FailureKind::Launch, message))
    }

    /// As [`Self::checked`]; nor may it have taken longer than the whole `request` for it.
    pub(crate) fn checked_within(self, request: Duration) -> Result<Self, MeasureFailure> {
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
/// [`InProcess`](crate::InProcess) drives it: each candidate is prepared, then checked, then
/// launched once per sample, interleaved with other candidates. The default is checked first, so
/// that its output can serve as the expected output of the others; only in a process that replaces
/// a crashed one another candidate may come first.
pub trait Workload {
    /// The launch with each set of parameters worth measuring, the default first. No two have the
    /// same parameters, by which a [`Candidate`] names its configuration.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if not even the default can be prepared.
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure>;

    /// Does everything that must not be timed: compiles, plans, allocates.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if this candidate cannot run.
    fn prepare(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure>;

    /// Submits the launches of a prepared candidate: those of the plan that its choice yields for
    /// its configuration, or only the largest of them. On a device it returns before they have run,
    /// on the host afterwards. Everything in here is timed.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if a launch is rejected.
    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure>;

    /// Poisons the output, runs the candidate once and compares the full output with the default's,
    /// which was itself compared with a reference.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if the output is wrong or the candidate does not run.
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure>;
}

/// Checks and times candidates of one problem, on one device.
pub trait Measurer {
    /// Prepares a candidate, runs it once and compares its output. Called once per candidate,
    /// before any sample.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`]: this candidate is out, others continue.
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure>;

    /// Times a checked candidate once.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    fn sample(&mut self, candidate: &Candidate, portion: Portion)
    -> Result<Sample, MeasureFailure>;
}

/// A measurer that also knows the configurations of its problem: what [`serve`](crate::serve)
/// opens.
pub trait ProblemMeasurer: Measurer {
    /// As [`Workload::configurations`].
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if not even the default can be prepared.
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure>;
}

/// Identifies timed work, so that a clock can reuse what it captured of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(pub u64);

/// Times work on a device or on the host.
pub trait Clock {
    /// Times `work` once; it submits (on a device) or runs (on the host). What the policy asks for
    /// first, such as a cache flush, an untimed run or a graph capture, is not timed.
    ///
    /// Work of the same `id` must always be the same. It may be called several times, or not at all
    /// if it was captured before.
    ///
    /// # Errors
    ///
    /// The failure of `work`; [`FailureKind::Timeout`](crate::FailureKind) if it does not finish
    /// and [`FailureKind::Crash`](crate::FailureKind) if it breaks the context. After either the
    /// process is unusable.
    fn sample(
        &mut self,
        id: WorkId,
        work: &mut dyn FnMut() -> Result<(), MeasureFailure>,
    ) -> Result<Sample, MeasureFailure>;

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    ///
    /// As [`Self::sample`].
    fn finish(&mut self) -> Result<(), MeasureFailure>;
}
