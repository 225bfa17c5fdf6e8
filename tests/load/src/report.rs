//! The outcome of all requests.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The outcome of a request.
pub(crate) struct Outcome {
    /// The status, or why there is none.
    pub(crate) status: Result<u16, String>,
    pub(crate) latency: Duration,
    /// When the reply was whole, or there was none.
    pub(crate) ended: Instant,
    /// Whether the reply was correct, if it was compared.
    pub(crate) verified: Option<bool>,
}

/// The report of requests that were sent from `begun` on, of which `skipped` found no free client; and whether every
/// request got a status, at least one was served, and none served wrongly.
pub(crate) fn report(outcomes: &[Outcome], skipped: u64, begun: Instant) -> (Value, bool) {
    let (mut statuses, mut failures) = (BTreeMap::new(), BTreeMap::new());
    for outcome in outcomes {
        match &outcome.status {
            Ok(status) => *statuses.entry(status.to_string()).or_insert(0) += 1,
            Err(reason) => *failures.entry(reason).or_insert(0) += 1,
        }
    }
    let served = outcomes.iter().filter(|outcome| outcome.status == Ok(200));
    let mut latencies: Vec<_> = served.map(|outcome| outcome.latency).collect();
    latencies.sort_unstable();
    let compared = outcomes.iter().filter_map(|outcome| outcome.verified);
    let wrong = compared.clone().filter(|is_correct| !is_correct).count();
    let last = outcomes.iter().map(|outcome| outcome.ended).max().unwrap_or(begun);
    let took = (last - begun).as_secs_f64();
    let latency = (!latencies.is_empty()).then(|| {
        let [p50, p99, most] = [50, 99, 100].map(|percent| percentile(&latencies, percent));
        json!({ "p50": p50, "p99": p99, "most": most })
    });
    let served = u32::try_from(latencies.len()).unwrap_or(u32::MAX);
    let is_good = served > 0 && failures.is_empty() && wrong == 0;
    let report = json!({
        "sent": outcomes.len(),
        "skipped": skipped,
        "took_s": took,
        "served": served,
        "served_per_second": f64::from(served) / took.max(f64::MIN_POSITIVE),
        "latency_s": latency,
        "statuses": statuses,
        "failures": failures,
        "verified": compared.count(),
        "wrong": wrong,
    });
    (report, is_good)
}

/// The least latency in seconds that `percent` of the requests do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default().as_secs_f64()
}
