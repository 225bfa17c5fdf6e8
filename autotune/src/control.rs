//! The limits and the observer of a search.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;

/// The limits of a search. A search that ends early still has an outcome, marked incomplete.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget<'a> {
    /// The longest time. The current sample still finishes.
    pub wall_time: Option<Duration>,
    /// The most samples, including dropped ones.
    pub evaluations: Option<u64>,
    /// Ends the search once it is set.
    pub interrupt: Option<&'a AtomicBool>,
    /// The least time that the traffic of the problem takes, in nanoseconds ([`Roofline`](crate::Roofline)). A search
    /// compares nothing but the default and the candidates that are within 3 % of it.
    pub least_ns: Option<f64>,
}

impl Budget<'_> {
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Whether a search must end.
    pub(crate) fn is_over(&self, elapsed: Duration, evaluations: u64) -> bool {
        self.is_interrupted()
            || self.wall_time.is_some_and(|most| elapsed >= most)
            || self.evaluations.is_some_and(|most| evaluations >= most)
    }
}

/// A stage of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Compares outputs.
    Check,
    /// Takes a few samples of everything.
    Coarse,
    /// Takes more samples of the faster candidates.
    Fine,
    /// Measures neighbours of the best candidate, in a large space.
    Descent,
    /// Finds the largest chunk whose launch is within a time limit.
    Bisection,
    /// Compares the best candidates with the default.
    Finals,
}

impl fmt::Display for Stage {
    /// The name that is serialised, such as `coarse`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The state of a search at one moment.
#[derive(Clone, Copy, Debug)]
pub struct SearchProgress<'a> {
    /// The current stage.
    pub stage: Stage,
    /// The candidate to be checked or measured next.
    pub candidate: &'a Candidate,
    /// The fastest so far and its median in nanoseconds.
    pub best: Option<(&'a Candidate, f64)>,
    /// Samples taken.
    pub evaluations: u64,
    /// An estimate of all samples that the search will take.
    pub expected: u64,
}

/// Observes a search; `()` only waits for a throttled device.
pub trait Observer {
    /// Called before each check and each sample.
    fn progress(&mut self, _progress: &SearchProgress<'_>) {}

    /// Called when a sample at a throttled clock was discarded. Waits for `pause`, so that the device recovers.
    fn throttled(&mut self, pause: Duration) {
        thread::sleep(pause);
    }
}

impl Observer for () {}
