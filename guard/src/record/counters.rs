//! Counters of what a guard saw. Relaxed atomics: no lock, a few nanoseconds each.

use core::sync::atomic::{AtomicU64, Ordering};

use super::alone::Tally;
use crate::launch::rule::Rule;
use crate::launch::violation::Violations;

/// What a guard counts while it serves.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Plans of one launch: the common case costs one addition.
    whole: Tally,
    /// Plans of no launch, of several, or refused on the way.
    other: AtomicU64,
    /// Launches of these.
    other_launches: AtomicU64,
    split: AtomicU64,
    refused_by_driver: AtomicU64,
    rejections: [AtomicU64; Rule::ALL.len()],
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            whole: Tally::new(),
            other: AtomicU64::new(0),
            other_launches: AtomicU64::new(0),
            split: AtomicU64::new(0),
            refused_by_driver: AtomicU64::new(0),
            rejections: [const { AtomicU64::new(0) }; Rule::ALL.len()],
        }
    }

    /// Counts a plan that ran, of `launches` launches.
    #[inline]
    pub(crate) fn ran(&self, launches: u64) {
        if launches == 1 {
            self.whole.add_one();
        } else {
            self.ran_otherwise(launches);
        }
    }

    #[cold]
    fn ran_otherwise(&self, launches: u64) {
        self.other.fetch_add(1, Ordering::Relaxed);
        self.other_launches.fetch_add(launches, Ordering::Relaxed);
        self.split.fetch_add(u64::from(launches > 1), Ordering::Relaxed);
    }

    /// Counts a plan that stopped at launch `done`.
    #[cold]
    pub(crate) fn stopped(&self, done: u64) {
        self.other.fetch_add(1, Ordering::Relaxed);
        self.other_launches.fetch_add(done, Ordering::Relaxed);
        self.refused_by_driver.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts each broken rule of a rejected request once.
    #[cold]
    pub(crate) fn rejected(&self, violations: &Violations) {
        for rule in Rule::ALL {
            if violations.contains(*rule)
                && let Some(counter) = self.rejections.get(rule.index())
            {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn snapshot(&self) -> Counts {
        let rejections = Rule::ALL
            .iter()
            .zip(&self.rejections)
            .map(|(rule, count)| (*rule, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let whole = self.whole.sum();
        Counts {
            plans: whole + self.other.load(Ordering::Relaxed),
            launches: whole + self.other_launches.load(Ordering::Relaxed),
            split: self.split.load(Ordering::Relaxed),
            refused_by_driver: self.refused_by_driver.load(Ordering::Relaxed),
            rejections,
            ..Counts::default()
        }
    }
}

/// What a guard has counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Counts {
    /// Requests that were launched, whole or split.
    pub plans: u64,
    /// Launches that were submitted: the chunks of all plans.
    pub launches: u64,
    /// Requests that took more than one launch.
    pub split: u64,
    /// Plans that the backend refused at some chunk although they were valid.
    pub refused_by_driver: u64,
    /// Rejected requests by rule, in the order of [`Rule::ALL`]; a request that breaks several
    /// counts for each.
    pub rejections: Vec<(Rule, u64)>,
    /// Launches in the guard's context that were waited for because launches are checked.
    pub checked: u64,
    /// Launches that were to be checked and were not, because their stream was being captured.
    pub unchecked_in_capture: u64,
    /// Launches in the guard's context on streams beyond those with a record of their own: they
    /// share one, and are the first to be forgotten.
    pub sharing_a_record: u64,
    /// Launches in the guard's context of which there is no record, because a thread was held up
    /// while it wrote another one.
    pub unrecorded: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, validate};

    #[test]
    fn a_rejected_request_counts_once_for_each_rule() {
        let counters = Counters::new();
        let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
        let request = LaunchRequest::new(Dim3::new(0, 0, 65_536), Dim3::ONE);
        counters.rejected(&validate(&request, &limits).expect_err("zero and too large"));
        counters.ran(2);
        let counts = counters.snapshot();
        assert_eq!(counts.rejections, [(Rule::GridDimZ, 1), (Rule::GridDimZero, 1)]);
        assert_eq!((counts.plans, counts.launches, counts.split), (1, 2, 1));
    }
}
