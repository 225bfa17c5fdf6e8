//! Events for `tracing` and numbers for `metrics`. Without these features the functions do nothing.
//!
//! Subscribers and recorders run code of the program, which may begin a capture or make another context
//! current. Therefore a launch calls them either before it makes its context current and queries captures,
//! or after it has recorded the uses of its memory.

use crate::launch::violation::Violations;
use crate::plan::launches::Plan;
#[cfg(feature = "profile")]
use crate::profile::matching::MatchKind;

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
/// | `gridguard_profile_lookups_total` | counter | `match`: `exact`, `row`, `bucket`, `neighbour` or `default` |
#[cfg(feature = "metrics")]
pub fn describe_metrics() {
    for (name, text) in [
        ("requests", "Requests that were launched, whole, in chunks or in part"),
        ("launches", "Launches that were submitted"),
        ("split", "Requests that took more than one launch"),
        ("rejections", "Rejected requests, by each rule that they break"),
        ("refused_by_driver", "Valid requests that stopped at a failed launch or allocation"),
        ("late_errors", "Errors that a call returned for an earlier launch"),
        ("profile_lookups", "Profile lookups, by kind of match"),
    ] {
        metrics::describe_counter!(format!("gridguard_{name}_total"), metrics::Unit::Count, text);
    }
    metrics::describe_histogram!(
        "gridguard_planning_seconds",
        metrics::Unit::Seconds,
        "Time to plan a request whose strategy the planner chooses"
    );
}

/// Reports a request that ran in `launches` launches.
#[inline]
pub(crate) fn ran(launches: u64) {
    count(launches);
    #[cfg(feature = "metrics")]
    if launches > 1 {
        metrics::counter!("gridguard_split_total").increment(1);
    }
}

/// Counts a request and its launches. Names are literals: `metrics` hashes any other name at each use.
#[inline]
fn count(launches: u64) {
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("gridguard_requests_total").increment(1);
        metrics::counter!("gridguard_launches_total").increment(launches);
    }
    let _ = launches;
}

/// Reports a request that stopped after `launches` launches.
pub(crate) fn stopped(launches: u64) {
    count(launches);
    #[cfg(feature = "metrics")]
    metrics::counter!("gridguard_refused_by_driver_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::error!(target: TARGET, launches, "a request stopped before its end");
}

/// Reports a rejected request.
pub(crate) fn rejected(violations: &Violations) {
    #[cfg(feature = "metrics")]
    let mut counted = None;
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    for violation in violations {
        let rule = violation.rule.id();
        // A rule that is broken on several axes is counted once.
        #[cfg(feature = "metrics")]
        if counted.replace(rule) != Some(rule) {
            metrics::counter!("gridguard_rejections_total", "rule" => rule).increment(1);
        }
        #[cfg(feature = "tracing")]
        tracing::warn!(
            target: TARGET,
            rule,
            axis = violation.axis.map(tracing::field::display),
            // Numeric fields have 64 bits.
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

/// Reports a plan that was launched, if it is split.
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

/// Reports an error of `call` that one of `suspects` recorded launches may have caused.
pub(crate) fn late_error(call: &str, error: &str, suspects: usize) {
    #[cfg(feature = "metrics")]
    metrics::counter!("gridguard_late_errors_total", "error" => error.to_owned()).increment(1);
    #[cfg(feature = "tracing")]
    tracing::error!(target: TARGET, call, error, suspects, "error of an earlier launch");
    let _ = (call, error, suspects);
}

/// Reports a guard that runs on the host because there is no device.
pub(crate) fn fell_back(reason: &dyn core::fmt::Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, %reason, "no CUDA device: the guard runs on the host");
    let _ = reason;
}

/// Reports a profile lookup.
#[cfg(feature = "profile")]
#[inline]
pub(crate) fn looked_up(kernel: &str, names: &[&str], sizes: &[u64], matched: MatchKind) {
    #[cfg(feature = "metrics")]
    // With literal labels `metrics` allocates nothing.
    match matched {
        MatchKind::Exact => {
            metrics::counter!("gridguard_profile_lookups_total", "match" => "exact")
        }
        MatchKind::Row => {
            metrics::counter!("gridguard_profile_lookups_total", "match" => "row")
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
    if !matches!(matched, MatchKind::Exact | MatchKind::Row) {
        tracing::debug!(target: TARGET, kernel, ?names, ?sizes, %matched, "no exact profile entry for this shape");
    }
    let _ = (kernel, names, sizes, matched);
}

/// Reports a stored choice that is not legal for the launch.
pub(crate) fn choice_refused() {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, "the profile's choice is not legal here: the planner chooses");
}
