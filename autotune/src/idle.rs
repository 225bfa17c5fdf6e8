//! Measures only while no other process uses the device.

use core::time::Duration;

use crate::candidate::{Candidate, LaunchConfig};
use crate::failure::{FailureKind, Measured};
use crate::measure::{Measurer, Portion, Sample};

/// Passes requests on while the device is idle. Repeats requests that fail with [`Busy`](FailureKind::Busy), as with a
/// clock that [yields](crate::DeviceClock::yielding).
///
/// After such a failure it waits until the device was idle for a second. Each time that another process comes back
/// within 10,000 requests, the wait doubles, up to a minute. With a constant wait, the tuner would delay each request
/// to a quiet server.
#[derive(Debug)]
pub struct WhenIdle<M, W> {
    measurer: M,
    wait: W,
    /// How long the device must be idle.
    needed: Duration,
    /// Requests since the last wait; none if the device may be in use.
    undisturbed: Option<u32>,
}

impl<M: Measurer, W: FnMut(Duration) -> Measured<()>> WhenIdle<M, W> {
    /// Measures with `measurer`. `wait` returns when the device was idle for the given time.
    #[must_use]
    pub const fn new(measurer: M, wait: W) -> Self {
        Self { measurer, wait, needed: LEAST_IDLE, undisturbed: None }
    }

    /// The measurer.
    pub fn into_inner(self) -> M {
        self.measurer
    }

    fn undisturbed<T>(&mut self, measure: impl Fn(&mut M) -> Measured<T>) -> Measured<T> {
        loop {
            let requests = match self.undisturbed {
                Some(requests) => requests,
                None => (self.wait)(self.needed).map(|()| 0)?,
            };
            self.undisturbed = Some(requests.saturating_add(1));
            match measure(&mut self.measurer) {
                Err(failure) if failure.kind == FailureKind::Busy => {
                    let longer = self.needed.saturating_mul(2).min(MOST_IDLE);
                    self.needed = if requests < SELDOM { longer } else { LEAST_IDLE };
                    self.undisturbed = None;
                }
                result => return result,
            }
        }
    }
}

impl<M: Measurer, W: FnMut(Duration) -> Measured<()>> Measurer for WhenIdle<M, W> {
    fn configurations(&mut self) -> Measured<Vec<LaunchConfig>> {
        self.measurer.configurations()
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.undisturbed(|measurer| measurer.check(candidate))
    }

    fn sample(&mut self, candidate: &Candidate, portion: Portion) -> Measured<Sample> {
        self.undisturbed(|measurer| measurer.sample(candidate, portion))
    }
}

const LEAST_IDLE: Duration = Duration::from_secs(1);
const MOST_IDLE: Duration = Duration::from_secs(60);
/// Requests between two uses that are rare: some tens of seconds.
const SELDOM: u32 = 10_000;
