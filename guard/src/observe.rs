//! Events for `tracing` and numbers for `metrics`. Without these features the functions here do nothing more.
//!
//! Subscribers and recorders run the program's own code, which may begin a capture or make another context
//! current. So a launch calls them before it makes its context current and queries captures, or after it
//! recorded the uses of its memory.

use crate::launch::violation::Violations;
use crate::plan::launches::Plan;
#[cfg(feature = "profile")]
use crate::profile::matching::MatchKind;

/// Counters of requests, from names that are literals: `metrics` hashes any other name at each use.
#[cfg(feature = "metrics")]
mod counters {
    use metrics::{Counter, counter};

    #[inline]
    pub(super) fn requests() -> Counter {
        counter!("gridguard_requests_total")
    }

    #[inline]
    pub(super) fn launches() -> Counter {
        counter!("gridguard_launches_total")
    }
}

/// The target of all events.
#[cfg(feature = "tracing")]
const TARGET: &str = "gridguard";

/// Describes every number that the guard reports, with its unit, to the program's `metrics` recorder.
/// Call it once, after the recorder is installed.
///
/// | name | kind | labels |
/// |---|---|---|
/// | `gridguard_requests_total` | counter | |
/// | `gridguard_launches_total` | counter | |
/// | `gridguard_split_total` | counter | |
/// | `gridguard_rejections_total` | counter | `rule`, such as `grid-dim-y` |
/// | `gridguard_refused_by_driver_total` | counter | |
/// | `gridguard_late_errors_total` | counter | `error`, such as `CUDA_ERROR_ILLEGAL_ADDRESS` |
/// | `gridguard_planning_seconds` | histogram | |
/// | `gridguard_profile_lookups_total` | counter | `match`: `exact`, `bucket`, `neighbour` or `default` |
#[cfg(feature = "metrics")]
pub fn describe_metrics() {
    use metrics::{Unit, describe_counter as counter, describe_histogram as histogram};

    let count = Unit::Count;
    counter!(
        "gridguard_requests_total",
        count,
        "Requests that were launched, whole, in chunks or in part"
    );
    counter!("gridguard_launches_total", count, "Launches that were submitted");
    counter!("gridguard_split_total", count, "Requests that took more than one launch");
    counter!(
        "gridguard_rejections_total",
        count,
        "Rejected requests, by each rule that they break"
    );
    counter!(
        "gridguard_refused_by_driver_total",
        count,
        "Valid requests that stopped at a launch or an allocation that failed"
    );
    counter!(
        "gridguard_late_errors_total",
        count,
        "Errors that a call returned for an earlier launch"
    );
    histogram!(
        "gridguard_planning_seconds",
        Unit::Seconds,
        "Time to plan a request, where the planner chooses"
    );
    counter!("gridguard_profile_lookups_total", count, "Profile lookups, by what they matched");
}

/// A request that ran, in `launches` launches.
#[inline]
pub(crate) fn ran(launches: u64) {
    #[cfg(feature = "metrics")]
    {
        counters::requests().increment(1);
        counters::launches().increment(launches);
        if launches > 1 {
            metrics::counter!("gridguard_split_total").increment(1);
        }
    }
    let _ = launches;
}

/// A request that stopped after `launches` launches.
pub(crate) fn stopped(launches: u64) {
    #[cfg(feature = "metrics")]
    {
        counters::requests().increment(1);
        metrics::counter!("gridguard_refused_by_driver_total").increment(1);
        counters::launches().increment(launches);
    }
    #[cfg(feature = "tracing")]
    tracing::error!(target: TARGET, launches, "a request stopped before its end");
    let _ = launches;
}

/// A request that was rejected.
pub(crate) fn rejected(violations: &Violations) {
    #[cfg(feature = "metrics")]
    let mut counted = None;
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    for violation in violations {
        let rule = violation.rule.id();
        // A rule that is broken on several axes counts once.
        #[cfg(feature = "metrics")]
        if counted.replace(rule) != Some(rule) {
            metrics::counter!("gridguard_rejections_total", "rule" => rule).increment(1);
        }
        #[cfg(feature = "tracing")]
        tracing::warn!(
            target: TARGET,
            rule,
            axis = violation.axis.map(tracing::field::display),
            // Fields have 64 bits where they are numbers.
            requested = u64::try_from(violation.requested).unwrap_or(u64::MAX),
            limit = violation.limit,
            owner = %violation.owner,
            remedy = %violation.remedy,
            "launch rejected",
        );
        let _ = rule;
    }
    let _ = violations;
}

/// Calls `plan`, and records how long it took.
#[inline]
pub(crate) fn planning<T>(plan: impl FnOnce() -> T) -> T {
    #[cfg(feature = "metrics")]
    let begun = std::time::Instant::now();
    let planned = plan();
    #[cfg(feature = "metrics")]
    metrics::histogram!("gridguard_planning_seconds").record(begun.elapsed());
    planned
}

/// `plan` was launched, of the kernel of this name.
#[inline]
pub(crate) fn launched(kernel: Option<&str>, plan: &Plan) {
    #[cfg(feature = "tracing")]
    if plan.len() > 1 {
        let (launches, items, largest) = (plan.len(), plan.items(), plan.largest_chunk());
        let strategy = tracing::field::debug(plan.strategy());
        tracing::debug!(
            target: TARGET, kernel, launches, items, largest, strategy, "launch split"
        );
    }
    let _ = (kernel, plan);
}

/// An error of `call` that an earlier launch may have caused: one of `suspects` on record.
#[cfg(feature = "cuda")]
pub(crate) fn late_error(call: &str, error: &str, suspects: usize) {
    #[cfg(feature = "metrics")]
    metrics::counter!("gridguard_late_errors_total", "error" => error.to_owned()).increment(1);
    #[cfg(feature = "tracing")]
    tracing::error!(target: TARGET, call, error, suspects, "error of an earlier launch");
    let _ = (call, error, suspects);
}

/// A guard that runs on the host although a device was wanted.
pub(crate) fn fell_back(reason: &dyn core::fmt::Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, %reason, "no CUDA device: the guard runs on the host");
    let _ = reason;
}

/// A lookup of `kernel` in the profile, and what it `matched`.
#[cfg(feature = "profile")]
#[inline]
pub(crate) fn looked_up(kernel: &str, names: &[&str], sizes: &[u64], matched: MatchKind) {
    #[cfg(feature = "metrics")]
    // A label that is not a literal is allocated.
    match matched {
        MatchKind::Exact => {
            metrics::counter!("gridguard_profile_lookups_total", "match" => "exact")
        }
        MatchKind::Bucket => {
            metrics::counter!("gridguard_profile_lookups_total", "match" => "bucket")
        }
        MatchKind::Neighbour => {
            metrics::counter!("gridguard_profile_lookups_total", "match" => "neighbour")
        }
        MatchKind::Default => {
            metrics::counter!("gridguard_profile_lookups_total", "match" => "default")
        }
    }
    .increment(1);
    #[cfg(feature = "tracing")]
    if matched != MatchKind::Exact {
        let matched = matched.id();
        tracing::debug!(target: TARGET, kernel, ?names, ?sizes, matched, "no exact profile entry for this shape");
    }
    let _ = (kernel, names, sizes, matched);
}

/// A stored choice that is not legal for the launch.
#[cfg(feature = "profile")]
pub(crate) fn choice_refused() {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, "the profile's choice is not legal here: the planner chooses");
}
