//! The log and the metrics of the process.

use std::io;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use tracing::Level;

/// Writes events of `level` and above to standard error, as lines of JSON. Called once.
pub fn log(level: Level) {
    tracing_subscriber::fmt().json().with_max_level(level).with_writer(io::stderr).init();
}

/// Records metrics, and describes them. Called once.
///
/// # Errors
///
/// If the process has a recorder.
pub fn metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    gridguard::describe_metrics();
    for (name, text) in COUNTERS {
        describe_counter!(name, Unit::Count, text);
    }
    for (name, text) in GAUGES {
        describe_gauge!(name, text);
    }
    for (name, unit, text) in HISTOGRAMS {
        describe_histogram!(name, unit, text);
    }
    Ok(handle)
}

/// Seconds, or requests of a batch.
const BUCKETS: [f64; 18] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0,
    64.0, 128.0,
];

const COUNTERS: [(&str, &str); 10] = [
    ("gridguard_server_requests_total", "Requests, by endpoint and status"),
    ("gridguard_server_accepted_total", "Requests that were queued"),
    ("gridguard_server_answered_total", "Queued requests that got a reply"),
    ("gridguard_server_abandoned_total", "Queued requests whose clients left before the reply"),
    ("gridguard_server_batches_total", "Batches that ran, by endpoint and device"),
    ("gridguard_server_batches_cancelled_total", "Batches that stopped because all clients left"),
    ("gridguard_server_worker_restarts_total", "Backends that panicked and were replaced"),
    ("gridguard_server_connections_refused_total", "Connections closed at once: too many"),
    (
        "gridguard_server_late_readers_total",
        "Connections closed because a reply was read too slowly",
    ),
    ("gridguard_server_profile_reloads_total", "Profiles loaded again, by result"),
];

const GAUGES: [(&str, &str); 10] = [
    ("gridguard_server_in_flight", "Requests that are being served"),
    ("gridguard_server_queued", "Requests that wait for a device"),
    ("gridguard_server_connections", "Open connections of clients"),
    ("gridguard_server_body_bytes", "Bytes of bodies of requests that are not done"),
    ("gridguard_server_reply_bytes", "Bytes of replies that are computed or sent"),
    ("gridguard_server_work_seconds", "Estimated time of the accepted requests that are not done"),
    ("gridguard_server_operations_per_second", "What all devices compute, by estimate"),
    ("gridguard_server_workers_ready", "Devices that take batches"),
    ("gridguard_server_profile_entries", "Entries of the profiles in use"),
    ("gridguard_server_profile_info", "1 for the digest of a device's choices in use"),
];

const HISTOGRAMS: [(&str, Unit, &str); 5] = [
    ("gridguard_server_request_seconds", Unit::Seconds, "Time from headers to reply, by endpoint"),
    ("gridguard_server_batch_seconds", Unit::Seconds, "Time of a batch on its device"),
    ("gridguard_server_batch_estimate_seconds", Unit::Seconds, "Estimated time of a batch"),
    ("gridguard_server_wait_seconds", Unit::Seconds, "Time until a device took a request"),
    ("gridguard_server_batch_requests", Unit::Count, "Requests of a batch"),
];
