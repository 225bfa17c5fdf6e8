//! Clocks: how long work takes.

mod delay;
mod device;
mod graphs;
mod host;
mod warm_up;

pub use device::DeviceClock;
pub use host::HostClock;
pub use warm_up::WarmUp;

use crate::measurer::MeasureFailure;
use crate::sample::Sample;

/// Which work is timed. What a clock captures of it once serves every later sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(pub u64);

/// Times work.
pub trait Clock {
    /// Times `work` once; it submits (on a device) or runs (on the host). Its preparation by the
    /// clock's policy, such as a flush, a run before it or a capture, is not timed.
    ///
    /// Work of the same `id` must always be the same. It may be called several times, or not at all
    /// where it was captured before.
    ///
    /// # Errors
    ///
    /// What `work` fails with; a [`MeasureFailure`] of kind `Timeout` where it does not end and `Crash`
    /// where it takes the context with it: after either the process is of no further use.
    fn sample(
        &mut self,
        id: WorkId,
        work: &mut dyn FnMut() -> Result<(), MeasureFailure>,
    ) -> Result<Sample, MeasureFailure>;

    /// Waits until all work that was submitted is done.
    ///
    /// # Errors
    ///
    /// As [`Self::sample`].
    fn finish(&mut self) -> Result<(), MeasureFailure>;
}
