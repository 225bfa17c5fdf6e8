//! Samples that were taken at a lower clock than the others say nothing about a candidate.

use core::time::Duration;

/// Watches the clock of the multiprocessors over the samples of one problem.
#[derive(Clone, Debug)]
pub(crate) struct Throttle {
    reference_mhz: Option<f64>,
    discarded_in_a_row: u32,
    happened: bool,
}

/// What to do with a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clocked {
    /// Keep it.
    Steady,
    /// Throw it away, and wait so long before the next one.
    Throttled {
        /// How long.
        pause: Duration,
    },
}

impl Throttle {
    /// Compares with `nominal_mhz` where it is known, else with the highest clock that was seen.
    pub(crate) const fn new(nominal_mhz: Option<f64>) -> Self {
        Self { reference_mhz: nominal_mhz, discarded_in_a_row: 0, happened: false }
    }

    /// Judges a sample by its clock. Where the clock does not recover, it becomes the reference: a
    /// device that is always capped can be tuned too, and [`Self::happened`] says so.
    pub(crate) fn judge(&mut self, clock_mhz: Option<f64>) -> Clocked {
        let Some(clock) = clock_mhz.filter(|clock| clock.is_finite() && *clock > 0.0) else {
            return Clocked::Steady;
        };
        let reference = self.reference_mhz.map_or(clock, |seen| seen.max(clock));
        self.reference_mhz = Some(reference);
        if clock >= THROTTLED_FRACTION * reference {
            self.discarded_in_a_row = 0;
            return Clocked::Steady;
        }
        if self.discarded_in_a_row >= MOST_DISCARDED {
            self.happened = true;
            self.discarded_in_a_row = 0;
            self.reference_mhz = Some(clock);
            return Clocked::Steady;
        }
        let factor = 1_u32.checked_shl(self.discarded_in_a_row).unwrap_or(u32::MAX);
        self.discarded_in_a_row += 1;
        Clocked::Throttled { pause: SHORTEST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE) }
    }

    /// Whether samples had to be taken at a low clock after all.
    pub(crate) const fn happened(&self) -> bool {
        self.happened
    }
}

/// Below this fraction of the reference a clock is throttled. Ordinary boost moves within 10 %.
const THROTTLED_FRACTION: f64 = 0.85;
/// So many samples in a row are thrown away, about seven seconds of pauses in all; the next is taken
/// as it is.
const MOST_DISCARDED: u32 = 6;
/// The first pause: power caps act over a tenth of a second.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause: heat takes seconds to go.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded;

    fn pauses_ms(throttle: &mut Throttle, clocks: &[f64]) -> Vec<u128> {
        let judge = |clock: &f64| match throttle.judge(Some(*clock)) {
            Clocked::Steady => 0,
            Clocked::Throttled { pause } => pause.as_millis(),
        };
        clocks.iter().map(judge).collect()
    }

    #[test]
    fn a_power_cap_is_waited_out_with_longer_and_longer_pauses() {
        let mut throttle = Throttle::new(None);
        let pauses = pauses_ms(&mut throttle, &recorded::CLOCKS_MHZ);
        assert_eq!(pauses, [0, 0, 0, 0, 200, 400, 800, 1600, 2000, 2000, 0, 0, 0, 0]);
        assert!(!throttle.happened());
    }

    #[test]
    fn a_device_that_stays_capped_is_measured_as_it_is() {
        let mut throttle = Throttle::new(Some(1980.0));
        let pauses = pauses_ms(&mut throttle, &[1200.0; 10]);
        assert_eq!(pauses, [200, 400, 800, 1600, 2000, 2000, 0, 0, 0, 0]);
        assert!(throttle.happened());
    }

    #[test]
    fn a_device_that_tells_no_clock_is_never_throttled() {
        let mut throttle = Throttle::new(Some(1980.0));
        assert_eq!(throttle.judge(None), Clocked::Steady);
        assert_eq!(throttle.judge(Some(f64::NAN)), Clocked::Steady);
    }
}
