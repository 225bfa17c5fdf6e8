//! When a series has enough samples: plain numbers in, a reason out.

use gridguard::profile::StopReason;

use crate::number::{count, position};
use crate::stats::Samples;

/// When a series of samples ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StoppingRule {
    /// Never before so many samples.
    pub(crate) floor: u64,
    /// Always at so many.
    pub(crate) ceiling: u64,
    /// Precise below this [`Samples::relative_deviation`].
    pub(crate) relative_deviation: f64,
}

impl StoppingRule {
    /// For what takes less than [`SLOW_SAMPLE_NS`].
    pub(crate) const FAST: Self = Self { floor: 10, ceiling: 60, relative_deviation: 0.005 };
    /// For what takes seconds, such as large shapes on the host: three samples are the fewest of
    /// which one can be an outlier.
    pub(crate) const SLOW: Self = Self { floor: 3, ceiling: 9, relative_deviation: 0.005 };

    /// Why `times` are enough, or `None` where they are not. Times that are not finite never are.
    pub(crate) fn judge(&self, times: &[f64]) -> Option<StopReason> {
        let taken = count(times.len());
        if taken < self.floor {
            return None;
        }
        let deviation = Samples::new(times.iter().copied())?.relative_deviation();
        if deviation <= self.relative_deviation {
            return Some(StopReason::Precise);
        }
        if taken >= self.ceiling {
            return Some(StopReason::Ceiling);
        }
        let half = times.get(..position(taken / 2))?;
        let before = Samples::new(half.iter().copied())?.relative_deviation();
        let settled = taken >= self.floor.saturating_mul(2) && deviation >= STALLED * before;
        settled.then_some(StopReason::Noise)
    }
}

/// A sample of a second or more is slow, in nanoseconds: ten of them for each finalist would try
/// anybody's patience.
pub(crate) const SLOW_SAMPLE_NS: f64 = 1e9;
/// Twice the samples of steady noise bring the deviation down to 0.71. Where less than half of that
/// gain arrives, the noise grows as fast as the samples do.
const STALLED: f64 = 0.85;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded;

    /// Feeds a series in, again and again, until the rule has enough.
    fn run(rule: StoppingRule, times: &[f64]) -> (StopReason, usize) {
        let mut taken = Vec::new();
        for time in times.iter().cycle() {
            taken.push(*time);
            if let Some(stopped) = rule.judge(&taken) {
                return (stopped, taken.len());
            }
        }
        unreachable!("the ceiling ends it")
    }

    #[test]
    fn a_stable_series_ends_at_the_floor() {
        assert_eq!(run(StoppingRule::FAST, &recorded::STABLE), (StopReason::Precise, 10));
        assert_eq!(run(StoppingRule::FAST, &recorded::OUTLIERS), (StopReason::Precise, 10));
    }

    #[test]
    fn two_modes_end_before_the_ceiling_or_at_it_but_never_precise() {
        let (stopped, taken) = run(StoppingRule::FAST, &recorded::BIMODAL);
        assert_ne!(stopped, StopReason::Precise);
        assert!((20..=60).contains(&taken), "{taken}");
    }

    #[test]
    fn a_drift_that_never_ends_is_noise() {
        let drift: Vec<f64> = (0..60).map(|round| 100.0 * 1.01_f64.powi(round)).collect();
        assert_eq!(run(StoppingRule::FAST, &drift), (StopReason::Noise, 20));
    }

    #[test]
    fn steady_noise_that_is_too_strong_ends_at_the_ceiling() {
        let rule = StoppingRule { relative_deviation: 1e-6, ..StoppingRule::FAST };
        assert_eq!(run(rule, &recorded::STABLE), (StopReason::Ceiling, 60));
    }

    #[test]
    fn slow_samples_end_sooner() {
        assert_eq!(run(StoppingRule::SLOW, &recorded::STABLE).1, 3);
    }

    #[test]
    fn a_time_that_is_not_a_number_is_never_enough() {
        let times = [f64::NAN; 60];
        assert_eq!(StoppingRule::FAST.judge(&times), None);
    }
}
