//! How much a search may cost, and who may end it.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

/// What a search may cost. It ends in order whatever it is: what is known then is the outcome.
#[derive(Clone, Copy)]
pub struct Budget<'a> {
    /// At most so long, up to the end of the sample that is being taken.
    pub wall_time: Option<Duration>,
    /// At most so many samples, dropped ones included.
    pub evaluations: Option<u64>,
    /// Ends the search once it is set.
    pub interrupt: Option<&'a AtomicBool>,
    /// The clock of the multiprocessors that samples are held against, in MHz; without it, the
    /// highest that is seen.
    pub nominal_clock_mhz: Option<f64>,
    /// Waits for a throttled device to recover.
    pub pause: fn(Duration),
}

impl Default for Budget<'_> {
    fn default() -> Self {
        Self {
            wall_time: None,
            evaluations: None,
            interrupt: None,
            nominal_clock_mhz: None,
            pause: std::thread::sleep,
        }
    }
}

impl fmt::Debug for Budget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("wall_time", &self.wall_time)
            .field("evaluations", &self.evaluations)
            .field("interrupted", &self.is_interrupted())
            .finish_non_exhaustive()
    }
}

impl Budget<'_> {
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    pub(crate) fn is_spent(&self, elapsed: Duration, evaluations: u64) -> bool {
        self.wall_time.is_some_and(|most| elapsed >= most)
            || self.evaluations.is_some_and(|most| evaluations >= most)
    }
}
