//! When caches, clocks and pages are warm enough for samples that count.

use std::time::Duration;

/// Runs before the first samples until their times are stable: the medians of three
/// successive groups of three differ by less than 2 %, or 300 ms are over.
///
/// ```
/// use std::time::Duration;
/// use gridguard_autotune::WarmUp;
///
/// let mut warm_up = WarmUp::new();
/// let times = [90.0, 52.0, 51.0, 50.0, 50.1, 70.0, 50.2, 50.0, 50.1, 50.3, 50.2, 50.1];
/// let runs = times.iter().take_while(|time_ns| warm_up.goes_on(**time_ns, Duration::ZERO));
/// assert_eq!(runs.count() + 1, 12); // the first group is too slow
/// ```
#[derive(Clone, Debug, Default)]
pub struct WarmUp {
    group: Vec<f64>,
    medians: Vec<f64>,
}

impl WarmUp {
    /// Nothing has run yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { group: Vec::new(), medians: Vec::new() }
    }

    /// Takes the time of one more run, in nanoseconds, and says whether another is needed; `elapsed`
    /// is the time since the first began.
    #[must_use]
    pub fn goes_on(&mut self, time_ns: f64, elapsed: Duration) -> bool {
        self.group.push(time_ns);
        if self.group.len() == GROUP {
            self.group.sort_by(f64::total_cmp);
            self.medians.extend(self.group.get(GROUP / 2));
            self.group.clear();
        }
        elapsed < LONGEST && !self.is_stable()
    }

    fn is_stable(&self) -> bool {
        let Some(last) = self.medians.last_chunk::<GROUPS>() else {
            return false;
        };
        let least = last.iter().copied().fold(f64::INFINITY, f64::min);
        last.iter().all(|median| *median < least * (1.0 + SPREAD))
    }
}

/// Runs whose median counts: one that was disturbed is outvoted.
const GROUP: usize = 3;
/// Successive medians that must agree: a slow drift shows over nine runs.
const GROUPS: usize = 3;
/// How far they may differ, relative to the least.
const SPREAD: f64 = 0.02;
/// The longest warm-up. A device leaves its idle clocks within some tens of milliseconds.
const LONGEST: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(times: impl IntoIterator<Item = f64>) -> usize {
        let mut warm_up = WarmUp::new();
        let goes_on = |time: &f64| warm_up.goes_on(*time, Duration::ZERO);
        times.into_iter().take_while(goes_on).count() + 1
    }

    #[test]
    fn stable_times_end_it_after_nine_runs() {
        assert_eq!(runs([10.0; 100]), 9);
    }

    #[test]
    fn a_disturbed_run_in_each_group_does_not_prolong_it() {
        assert_eq!(runs([10.0, 10.1, 90.0].into_iter().cycle().take(100)), 9);
    }

    #[test]
    fn a_drift_prolongs_it_until_it_ends() {
        let falling = (0..20).map(|run| 300.0 - 10.0 * f64::from(run));
        let runs = runs(falling.chain([100.0; 50]));
        assert!((27..=32).contains(&runs), "{runs}");
    }

    #[test]
    fn it_ends_when_the_time_is_over_whatever_the_times() {
        let mut warm_up = WarmUp::new();
        assert!(warm_up.goes_on(10.0, Duration::from_millis(299)));
        assert!(!warm_up.goes_on(900.0, Duration::from_millis(300)));
    }

    #[test]
    fn times_that_are_no_numbers_are_never_stable() {
        let mut warm_up = WarmUp::new();
        assert!((0..50).all(|_| warm_up.goes_on(f64::NAN, Duration::ZERO)));
    }
}
