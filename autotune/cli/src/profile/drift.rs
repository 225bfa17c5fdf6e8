//! Detects that the time of a choice has changed since it was tuned.

use std::fmt;
use std::time::SystemTime;

use gridguard::profile::Summary;
use gridguard_autotune::{duration, real};
use serde::Serialize;

use super::entry;

/// A change in the time of the same choice. The cause is the device, its clocks or its driver, not the choice.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Drift {
    /// The time now divided by the entry's.
    ratio: f64,
    tuned_ns: u64,
    now_ns: u64,
    tuned_on: String,
    now: String,
}

impl Drift {
    /// The drift from `tuned` to `now`, if beyond the tolerance and both confidence intervals.
    pub(super) fn between(
        tuned: &Summary,
        tuned_on: &str,
        now: &Summary,
        tolerance: f64,
    ) -> Option<Self> {
        let (tuned_ns, now_ns) = (tuned.median_ns, now.median_ns);
        let ratio = 1.0 + entry::change(tuned_ns, now_ns)?;
        let is_sure = now.low_ns > tuned.high_ns || now.high_ns < tuned.low_ns;
        let is_far = ratio.max(ratio.recip()) > 1.0 + tolerance;
        let today = || humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        (is_sure && is_far).then(|| Self {
            ratio,
            tuned_ns,
            now_ns,
            tuned_on: tuned_on.to_owned(),
            now: today(),
        })
    }
}

impl fmt::Display for Drift {
    /// `took 63.80 ms on 2026-11-20T12:00:00Z and takes 53.60 ms on 2026-11-22T12:00:00Z, 0.840 times
    /// as long`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ratio, tuned_on, now, .. } = self;
        let [before, after] = [self.tuned_ns, self.now_ns].map(|ns| duration(real(ns)));
        let tuned_on = if tuned_on.is_empty() { "an unknown date" } else { tuned_on };
        write!(
            f,
            "took {before} on {tuned_on} and takes {after} on {now}, {ratio:.3} times as long"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drift(tuned: [u64; 3], now: [u64; 3]) -> Option<Drift> {
        let summary = |[low_ns, median_ns, high_ns]: [u64; 3]| Summary {
            low_ns,
            median_ns,
            high_ns,
            samples: 20,
        };
        Drift::between(&summary(tuned), "2026-11-20T12:00:00Z", &summary(now), 0.05)
    }

    #[test]
    fn a_drift_is_beyond_the_tolerance_and_both_intervals_in_either_direction() {
        let tuned = [630, 638, 640];
        let faster = drift(tuned, [530, 536, 540]).expect("a drift");
        assert!((faster.ratio - 0.840).abs() < 1e-3, "{faster:?}");
        let slower = drift(tuned, [700, 710, 720]).expect("a drift");
        assert!(
            slower
                .to_string()
                .starts_with("took 638 ns on 2026-11-20T12:00:00Z and takes 710 ns on ")
        );
        assert!(slower.to_string().ends_with(", 1.113 times as long"), "{slower}");
        for stable in [[660, 665, 670], [600, 710, 720], [530, 536, 632], tuned] {
            assert_eq!(drift(tuned, stable), None, "{stable:?}");
        }
        // Nothing was measured then.
        assert_eq!(drift([0; 3], tuned), None);
    }
}
