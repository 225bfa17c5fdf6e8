//! What came of all requests.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::attack::AttackSummary;

/// What came of a request.
pub(crate) struct Outcome {
    /// The status, or why there is none.
    pub(crate) status: Result<u16, String>,
    pub(crate) latency: Duration,
    /// When the reply was whole, or there was none.
    pub(crate) ended: Instant,
    /// Whether the reply was correct, if it was compared.
    pub(crate) verified: Option<bool>,
    /// How long it waited for a device, if the server says so.
    pub(crate) waited: Option<Duration>,
}

/// What came of all requests.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
    /// Requests that were due while too many others were on their way.
    pub(crate) skipped: u64,
    /// What came of an attack beside them.
    pub(crate) attack: Option<AttackSummary>,
    /// Until the last reply.
    pub(crate) took: Duration,
}

/// The numbers of a report.
#[derive(Serialize)]
pub(crate) struct Summary<'r> {
    sent: usize,
    skipped: u64,
    took_s: f64,
    served: u32,
    served_per_second: f64,
    latency_s: Latency,
    /// Requests by status.
    statuses: BTreeMap<u16, usize>,
    /// Requests without a status, by reason.
    failures: BTreeMap<&'r str, usize>,
    verified: usize,
    wrong: usize,
    /// The longest wait for a device.
    longest_wait_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    attack: Option<&'r AttackSummary>,
}

/// Percentiles of the latency of requests that were served, in seconds.
#[derive(Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    most: f64,
}

impl Report {
    /// The numbers of the report.
    pub(crate) fn summary(&self) -> Summary<'_> {
        let (mut statuses, mut failures) = (BTreeMap::new(), BTreeMap::new());
        let mut latencies = Vec::new();
        for outcome in &self.outcomes {
            match &outcome.status {
                Ok(status) => *statuses.entry(*status).or_default() += 1,
                Err(reason) => *failures.entry(reason.as_str()).or_default() += 1,
            }
            latencies.extend((outcome.status == Ok(OK)).then_some(outcome.latency));
        }
        latencies.sort_unstable();
        let [p50, p90, p99, most] =
            [50, 90, 99, 100].map(|percent| percentile(&latencies, percent).as_secs_f64());
        let compared = self.outcomes.iter().filter_map(|outcome| outcome.verified);
        let waits = self.outcomes.iter().filter_map(|outcome| outcome.waited);
        let served = u32::try_from(latencies.len()).unwrap_or(u32::MAX);
        let took_s = self.took.as_secs_f64();
        Summary {
            sent: self.outcomes.len(),
            skipped: self.skipped,
            took_s,
            served,
            served_per_second: f64::from(served) / took_s.max(f64::MIN_POSITIVE),
            latency_s: Latency { p50, p90, p99, most },
            statuses,
            failures,
            verified: compared.clone().count(),
            wrong: compared.filter(|is_correct| !is_correct).count(),
            longest_wait_s: waits.max().unwrap_or_default().as_secs_f64(),
            attack: self.attack.as_ref(),
        }
    }
}

impl Summary<'_> {
    /// Whether every request got a status, at least one was served, and none served wrongly.
    pub(crate) fn is_good(&self) -> bool {
        self.served > 0 && self.failures.is_empty() && self.wrong == 0
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, skipped, served, served_per_second, .. } = self;
        let [took, waited] = [self.took_s, self.longest_wait_s].map(Duration::from_secs_f64);
        writeln!(f, "sent     {sent} requests in {took:.3?}, {skipped} skipped")?;
        writeln!(f, "served   {served}, {served_per_second:.1} a second")?;
        let Latency { p50, p90, p99, most } = self.latency_s;
        let [p50, p90, p99, most] = [p50, p90, p99, most].map(Duration::from_secs_f64);
        writeln!(f, "latency  p50 {p50:.3?}, p90 {p90:.3?}, p99 {p99:.3?}, most {most:.3?}")?;
        for (status, requests) in &self.statuses {
            writeln!(f, "status   {status}: {requests}")?;
        }
        for (reason, requests) in &self.failures {
            writeln!(f, "failed   {requests}: {reason}")?;
        }
        writeln!(f, "waited   {waited:.3?} for a device at most")?;
        if let Some(AttackSummary { kind, connections, ends }) = self.attack {
            writeln!(f, "attack   {kind}: {connections} connections, {ends:?}")?;
        }
        write!(f, "verified {} replies, {} wrong", self.verified, self.wrong)
    }
}

/// The least latency that `percent` of the requests do not exceed; zero without any.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

const OK: u16 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: Result<u16, String>, verified: Option<bool>) -> Outcome {
        let (latency, ended) = (Duration::from_millis(3), Instant::now());
        Outcome { status, latency, ended, verified, waited: Some(Duration::from_millis(2)) }
    }

    fn report(outcomes: Vec<Outcome>) -> Report {
        Report { outcomes, skipped: 0, attack: None, took: Duration::from_secs(2) }
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
        assert!(report(vec![good(), outcome(Ok(429), None)]).summary().is_good());
        assert!(!report(vec![good(), outcome(Ok(200), Some(false))]).summary().is_good());
        assert!(!report(vec![good(), outcome(Err("reset".into()), None)]).summary().is_good());
        assert!(!report(vec![outcome(Ok(503), None)]).summary().is_good());
        assert!(!report(vec![]).summary().is_good());
    }

    #[test]
    fn a_report_lists_statuses_and_failures() {
        let outcomes = vec![outcome(Ok(200), Some(true)), outcome(Ok(429), None)];
        assert_eq!(
            report(outcomes).summary().to_string(),
            "sent     2 requests in 2.000s, 0 skipped\nserved   1, 0.5 a second\nlatency  p50 \
             3.000ms, p90 3.000ms, p99 3.000ms, most 3.000ms\nstatus   200: 1\nstatus   429: \
             1\nwaited   2.000ms for a device at most\nverified 1 replies, 0 wrong"
        );
    }
}
