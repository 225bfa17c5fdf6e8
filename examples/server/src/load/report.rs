//! What came of all requests.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What came of a request.
pub(crate) struct Outcome {
    /// The status, or why there is none.
    pub(crate) status: Result<u16, String>,
    pub(crate) latency: Duration,
    /// Whether the reply was correct, if it was compared.
    pub(crate) verified: Option<bool>,
}

/// What came of all requests.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
    /// Requests that were due while too many others were on their way.
    pub(crate) skipped: u64,
    pub(crate) took: Duration,
}

impl Report {
    /// Whether every request got a status, at least one was served, and none served wrongly.
    pub(crate) fn is_good(&self) -> bool {
        let is_served = |outcome: &Outcome| outcome.status == Ok(OK);
        let is_bad = |outcome: &Outcome| outcome.status.is_err() || outcome.verified == Some(false);
        self.outcomes.iter().any(is_served) && !self.outcomes.iter().any(is_bad)
    }

    /// Latencies of requests that were served, sorted.
    fn latencies(&self) -> Vec<Duration> {
        let served = self.outcomes.iter().filter(|outcome| outcome.status == Ok(OK));
        let mut latencies: Vec<Duration> = served.map(|outcome| outcome.latency).collect();
        latencies.sort_unstable();
        latencies
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latencies = self.latencies();
        let (sent, took, skipped) = (self.outcomes.len(), self.took, self.skipped);
        let served = u32::try_from(latencies.len()).unwrap_or(u32::MAX);
        let rate = f64::from(served) / took.as_secs_f64().max(f64::MIN_POSITIVE);
        writeln!(f, "sent     {sent} requests in {took:.3?}, {skipped} skipped")?;
        writeln!(f, "served   {served}, {rate:.1} a second")?;
        let [p50, p90, p99, most] =
            [50, 90, 99, 100].map(|percent| percentile(&latencies, percent));
        writeln!(f, "latency  p50 {p50:.3?}, p90 {p90:.3?}, p99 {p99:.3?}, most {most:.3?}")?;
        let mut statuses = BTreeMap::<u16, usize>::new();
        let mut failures = BTreeMap::<&str, usize>::new();
        for outcome in &self.outcomes {
            match &outcome.status {
                Ok(status) => *statuses.entry(*status).or_default() += 1,
                Err(reason) => *failures.entry(reason).or_default() += 1,
            }
        }
        for (status, requests) in statuses {
            writeln!(f, "status   {status}: {requests}")?;
        }
        for (reason, requests) in failures {
            writeln!(f, "failed   {requests}: {reason}")?;
        }
        let compared = self.outcomes.iter().filter_map(|outcome| outcome.verified);
        let wrong = compared.clone().filter(|is_correct| !is_correct).count();
        write!(f, "verified {} replies, {wrong} wrong", compared.count())
    }
}

/// The least latency that so many percent of requests do not exceed; zero without any.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

const OK: u16 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: Result<u16, String>, verified: Option<bool>) -> Outcome {
        Outcome { status, latency: Duration::from_millis(3), verified }
    }

    fn report(outcomes: Vec<Outcome>) -> Report {
        Report { outcomes, skipped: 0, took: Duration::from_secs(2) }
    }

    #[test]
    fn percentiles_are_latencies_that_were_measured() {
        let sorted: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        let at = |percent| percentile(&sorted, percent).as_millis();
        assert_eq!([at(50), at(90), at(99), at(100)], [100, 180, 198, 200]);
        assert_eq!(percentile(&sorted[..1], 50).as_millis(), 1);
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }

    #[test]
    fn a_wrong_reply_a_lost_request_and_nothing_served_are_not_good() {
        let good = || outcome(Ok(200), Some(true));
        assert!(report(vec![good(), outcome(Ok(429), None)]).is_good());
        assert!(!report(vec![good(), outcome(Ok(200), Some(false))]).is_good());
        assert!(!report(vec![good(), outcome(Err("reset".into()), None)]).is_good());
        assert!(!report(vec![outcome(Ok(503), None)]).is_good());
        assert!(!report(vec![]).is_good());
    }

    #[test]
    fn a_report_lists_statuses_and_failures() {
        let outcomes = vec![outcome(Ok(200), Some(true)), outcome(Ok(429), None)];
        assert_eq!(
            report(outcomes).to_string(),
            "sent     2 requests in 2.000s, 0 skipped\nserved   1, 0.5 a second\nlatency  p50 \
             3.000ms, p90 3.000ms, p99 3.000ms, most 3.000ms\nstatus   200: 1\nstatus   429: \
             1\nverified 1 replies, 0 wrong"
        );
    }
}
