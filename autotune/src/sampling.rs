//! Decides which samples count and how many are enough.

use core::time::Duration;

use gridguard::profile::StopReason;

use crate::stats::{Samples, count, position};

/// How many samples each part of a search takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SamplingEffort {
    /// Samples of each candidate in the coarse stage.
    pub(crate) coarse: u64,
    /// Samples of each candidate after the fine stage.
    pub(crate) fine: u64,
    /// The fewest rounds of the finals.
    pub(crate) finals: u64,
    /// The fewest samples of a complete series.
    pub(crate) min_samples: u64,
    /// The most samples of a series, unless its comparison with another one is unclear.
    pub(crate) max_samples: u64,
    /// The most samples of a candidate while its comparisons are open.
    pub(crate) max_compared: u64,
    /// The largest space that is measured completely.
    pub(crate) exhaustive: usize,
    /// The confidence of a comparison of two candidates, in standard deviations of a normal distribution.
    pub(crate) deviations: f64,
    /// Whether the first sample of a candidate counts.
    pub(crate) keeps_first: bool,
}

impl SamplingEffort {
    /// A comparison is confident by 99.9 %.
    pub(crate) const FAST: Self = Self {
        coarse: 2,
        fine: 4,
        finals: 6,
        min_samples: 10,
        max_samples: 60,
        max_compared: 200,
        exhaustive: 256,
        deviations: 3.09,
        keeps_first: false,
    };
    /// For samples of a second and more, for example large shapes on the host. Cold caches and clocks add only
    /// milliseconds to a first sample. Three samples tolerate one outlier.
    pub(crate) const SLOW: Self = Self {
        coarse: 1,
        fine: 2,
        finals: 3,
        min_samples: 3,
        max_samples: 9,
        max_compared: 9,
        exhaustive: 64,
        deviations: 1.15,
        keeps_first: true,
    };

    /// Why `times` are enough; `None` if they are not, or not finite.
    pub(crate) fn stop_reason(&self, times: &[f64]) -> Option<StopReason> {
        let taken = count(times.len());
        if taken < self.min_samples {
            return None;
        }
        let deviation = Samples::new(times.iter().copied())?.relative_deviation();
        if deviation <= PRECISE {
            return Some(StopReason::Precise);
        }
        if taken >= self.max_samples {
            return Some(StopReason::Ceiling);
        }
        let half = times.get(..position(taken / 2))?;
        let before = Samples::new(half.iter().copied())?.relative_deviation();
        let stalled = taken >= self.min_samples.saturating_mul(2) && deviation >= STALLED * before;
        stalled.then_some(StopReason::Noise)
    }
}

/// Watches the SM clock and discards throttled samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throttle {
    /// The highest clock observed.
    reference_mhz: Option<f64>,
    discarded_in_a_row: u32,
    /// Whether some samples were taken at a throttled clock.
    pub(crate) happened: bool,
}

impl Throttle {
    /// How long to wait before the sample is repeated; `None` if it counts. A clock that does not recover
    /// becomes the reference, so a device with a permanent power cap can be tuned too.
    pub(crate) fn pause(&mut self, clock_mhz: Option<f64>) -> Option<Duration> {
        let clock = clock_mhz.filter(|clock| clock.is_finite() && *clock > 0.0)?;
        let reference = self.reference_mhz.map_or(clock, |seen| seen.max(clock));
        self.reference_mhz = Some(reference);
        if clock >= THROTTLED_FRACTION * reference {
            self.discarded_in_a_row = 0;
            return None;
        }
        if self.discarded_in_a_row >= MAX_DISCARDED {
            *self = Self { reference_mhz: Some(clock), discarded_in_a_row: 0, happened: true };
            return None;
        }
        let factor = 1_u32.checked_shl(self.discarded_in_a_row).unwrap_or(u32::MAX);
        self.discarded_in_a_row += 1;
        Some(MIN_PAUSE.saturating_mul(factor).min(MAX_PAUSE))
    }
}

/// Discards samples during which other processes held the processor, as long as undisturbed ones still come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    patience: u32,
    discarded_in_a_row: u32,
}

impl Default for Disturbance {
    fn default() -> Self {
        Self { patience: MAX_REPEATS, discarded_in_a_row: 0 }
    }
}

impl Disturbance {
    /// Whether to take the sample again. On a machine that stays busy the patience shrinks, and the sample counts.
    pub(crate) fn discards(&mut self, is_disturbed: bool) -> bool {
        if is_disturbed && self.discarded_in_a_row < self.patience {
            self.discarded_in_a_row += 1;
            return true;
        }
        let patience = if is_disturbed { self.patience / 2 } else { self.patience * 2 };
        *self = Self { patience: patience.clamp(1, MAX_REPEATS), discarded_in_a_row: 0 };
        false
    }
}

/// From this time on, ten samples per finalist would take too long.
pub(crate) const SLOW_SAMPLE_NS: f64 = 1e9;
/// A series is precise at or below this [`Samples::relative_deviation`].
const PRECISE: f64 = 0.005;
/// Twice the samples of steady noise reduce the deviation to 0.71. With less than half of that gain, the noise
/// grows as fast as the samples.
const STALLED: f64 = 0.85;
/// A clock below this fraction of the reference is throttled. Ordinary boost varies within 10 %.
const THROTTLED_FRACTION: f64 = 0.85;
/// Samples discarded in a row, with about seven seconds of pauses, before one counts.
const MAX_DISCARDED: u32 = 6;
/// The first pause: power caps react within a tenth of a second.
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// The most repetitions of a disturbed sample.
const MAX_REPEATS: u32 = 8;
/// The longest pause: a device takes seconds to cool down.
const MAX_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::recorded;

    /// Repeats a series until it is complete.
    fn run(effort: SamplingEffort, times: &[f64]) -> (StopReason, usize) {
        let mut taken = Vec::new();
        for time in times.iter().cycle() {
            taken.push(*time);
            if let Some(stopped) = effort.stop_reason(&taken) {
                return (stopped, taken.len());
            }
        }
        unreachable!("the maximum ends it")
    }

    #[test]
    fn a_stable_series_ends_at_the_fewest_samples() {
        assert_eq!(run(SamplingEffort::FAST, &recorded::STABLE), (StopReason::Precise, 10));
        assert_eq!(run(SamplingEffort::FAST, &recorded::OUTLIERS), (StopReason::Precise, 10));
    }

    #[test]
    fn a_bimodal_series_is_never_precise() {
        let (stopped, taken) = run(SamplingEffort::FAST, &recorded::BIMODAL);
        assert_ne!(stopped, StopReason::Precise);
        assert!((20..=60).contains(&taken), "{taken}");
    }

    #[test]
    fn an_endless_drift_is_noise() {
        let drift: Vec<f64> = (0..60).map(|round| 100.0 * 1.01_f64.powi(round)).collect();
        assert_eq!(run(SamplingEffort::FAST, &drift), (StopReason::Noise, 20));
    }

    #[test]
    fn strong_steady_noise_ends_at_the_most_samples() {
        let middle = Samples::new(recorded::STABLE).expect("finite").median();
        let noisy = recorded::STABLE.map(|time| middle + 100.0 * (time - middle));
        assert_eq!(run(SamplingEffort::FAST, &noisy), (StopReason::Ceiling, 60));
    }

    #[test]
    fn fewer_slow_samples_are_enough() {
        assert_eq!(run(SamplingEffort::SLOW, &recorded::STABLE).1, 3);
    }

    #[test]
    fn times_that_are_nan_are_never_enough() {
        let times = [f64::NAN; 60];
        assert_eq!(SamplingEffort::FAST.stop_reason(&times), None);
    }

    fn pauses_ms(throttle: &mut Throttle, clocks: &[f64]) -> Vec<u128> {
        let pause = |clock: &f64| throttle.pause(Some(*clock)).map_or(0, |pause| pause.as_millis());
        clocks.iter().map(pause).collect()
    }

    #[test]
    fn pauses_grow_while_a_power_cap_lasts() {
        let mut throttle = Throttle::default();
        let pauses = pauses_ms(&mut throttle, &recorded::CLOCKS_MHZ);
        assert_eq!(pauses, [0, 0, 0, 0, 200, 400, 800, 1600, 2000, 2000, 0, 0, 0, 0]);
        assert!(!throttle.happened);
    }

    #[test]
    fn a_permanently_capped_device_is_measured_at_its_clock() {
        let mut throttle = Throttle { reference_mhz: Some(1980.0), ..Throttle::default() };
        let pauses = pauses_ms(&mut throttle, &[1200.0; 10]);
        assert_eq!(pauses, [200, 400, 800, 1600, 2000, 2000, 0, 0, 0, 0]);
        assert!(throttle.happened);
    }

    #[test]
    fn a_busy_machine_is_waited_for_with_less_and_less_patience() {
        let mut disturbance = Disturbance::default();
        let mut discarded = |busy: u32| (0..busy).filter(|_| disturbance.discards(true)).count();
        // Each ninth, then each fifth, third and second counts.
        assert_eq!(discarded(9 + 5 + 3 + 2 + 2), 8 + 4 + 2 + 1 + 1);
        assert!(!disturbance.discards(false), "an undisturbed one counts");
    }

    #[test]
    fn a_device_without_a_clock_reading_is_never_throttled() {
        let mut throttle = Throttle { reference_mhz: Some(1980.0), ..Throttle::default() };
        assert_eq!(throttle.pause(None), None);
        assert_eq!(throttle.pause(Some(f64::NAN)), None);
    }
}
