//! Lock-free counters of plans, launches and rejections. They are written before observers run, which may panic.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::launch::rule::Rule;
use crate::launch::violation::Violations;
use crate::observe;

/// The counters of a guard.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Plans of one launch: the common case costs one addition.
    single: Tally,
    /// All other plans: with no launch, with several, or stopped by an error.
    other: AtomicU64,
    /// Launches of the other plans.
    other_launches: AtomicU64,
    split: AtomicU64,
    refused_by_driver: AtomicU64,
    rejections: [AtomicU64; Rule::ALL.len()],
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            single: Tally::new(),
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
            self.single.add_one();
        } else {
            self.ran_several(launches);
        }
        observe::ran(launches);
    }

    #[cold]
    fn ran_several(&self, launches: u64) {
        self.other.fetch_add(1, Ordering::Relaxed);
        self.other_launches.fetch_add(launches, Ordering::Relaxed);
        self.split.fetch_add(u64::from(launches > 1), Ordering::Relaxed);
    }

    /// Counts a plan that the backend refused after `launches` launches.
    #[cold]
    pub(crate) fn stopped(&self, launches: u64) {
        self.other.fetch_add(1, Ordering::Relaxed);
        self.other_launches.fetch_add(launches, Ordering::Relaxed);
        self.refused_by_driver.fetch_add(1, Ordering::Relaxed);
        observe::stopped(launches);
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
        observe::rejected(violations);
    }

    pub(crate) fn snapshot(&self) -> Counts {
        let rejections = Rule::ALL
            .iter()
            .zip(&self.rejections)
            .map(|(rule, count)| (*rule, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let single = self.single.sum();
        Counts {
            plans: single + self.other.load(Ordering::Relaxed),
            launches: single + self.other_launches.load(Ordering::Relaxed),
            split: self.split.load(Ordering::Relaxed),
            refused_by_driver: self.refused_by_driver.load(Ordering::Relaxed),
            rejections,
            ..Counts::default()
        }
    }
}

/// The counters of a guard at one time.
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
    /// Valid plans that the backend refused at some chunk.
    pub refused_by_driver: u64,
    /// Rejected requests by rule, in the order of [`Rule::ALL`]; a request that breaks several
    /// counts for each.
    pub rejections: Vec<(Rule, u64)>,
    /// Checked launches in the guard's context: each was synchronised at once.
    pub checked: u64,
    /// Launches in the guard's context that could not be checked because their stream was being captured.
    pub unchecked_in_capture: u64,
    /// Launches in the guard's context on streams that have no ring of records for themselves. These records share one
    /// ring, and are overwritten first.
    pub sharing_a_record: u64,
}

/// A counter for any number of threads. The first thread that adds to it owns it, and adds without an atomic
/// read-modify-write.
///
/// Nearly all launches of a guard come from one thread. Atomic addition costs 5 to 10 ns on x86, the same as
/// the rest of counting and recording a launch.
#[derive(Debug)]
struct Tally {
    /// [`this_thread`] of the only thread that writes `by_owner`; 0 if there is none yet.
    owner: AtomicUsize,
    by_owner: AtomicU64,
    by_others: AtomicU64,
}

impl Tally {
    const fn new() -> Self {
        Self {
            owner: AtomicUsize::new(0),
            by_owner: AtomicU64::new(0),
            by_others: AtomicU64::new(0),
        }
    }

    #[inline]
    fn add_one(&self) {
        if self.is_owned_by(this_thread()) {
            let so_far = self.by_owner.load(Ordering::Relaxed);
            self.by_owner.store(so_far.wrapping_add(1), Ordering::Relaxed);
        } else {
            self.by_others.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is_owned_by(&self, thread: usize) -> bool {
        match self.owner.load(Ordering::Relaxed) {
            0 => self.take_ownership(thread),
            owner => owner == thread,
        }
    }

    #[cold]
    fn take_ownership(&self, thread: usize) -> bool {
        self.owner.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn sum(&self) -> u64 {
        let by_owner = self.by_owner.load(Ordering::Relaxed);
        by_owner.wrapping_add(self.by_others.load(Ordering::Relaxed))
    }
}

/// A number that is unique among living threads: the address of a thread-local variable.
///
/// A new thread may get the number of a thread that has ended, and with it the ownership of its tallies. It
/// then sees all writes of the other thread, because the system's allocator, which passed the address on,
/// synchronises the two threads.
#[inline]
fn this_thread() -> usize {
    thread_local! {
        static OWN: u8 = const { 0 };
    }
    OWN.with(|own| core::ptr::from_ref(own).addr())
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

    #[test]
    fn only_the_first_thread_owns_a_tally() {
        let tally = Tally::new();
        let is_mine = || tally.is_owned_by(this_thread());
        assert!(is_mine());
        // This thread is still alive, so another thread has another number.
        let other = std::thread::scope(|scope| scope.spawn(is_mine).join());
        assert!(!other.expect("it returns"));
        assert!(is_mine());
    }

    #[test]
    fn nothing_is_lost_when_threads_add_at_once_and_one_after_another() {
        /// Additions of each thread.
        const ADDITIONS: u64 = if cfg!(miri) { 20 } else { 10_000 };
        let tally = Tally::new();
        let add = || (0..ADDITIONS).for_each(|_| tally.add_one());
        for _ in 0..20 {
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(add))));
        }
        add();
        assert_eq!(tally.sum(), 81 * ADDITIONS);
    }
}
