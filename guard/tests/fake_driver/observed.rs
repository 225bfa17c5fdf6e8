//! What subscribers of `tracing` and recorders of `metrics` get.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use gridguard::profile::{Key, Profile};
use gridguard::{Axis, Guard};
use gridguard_test_support::fake_driver::with_fake;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use serde_json::{Value, json};

use crate::kernels::{context, guard, items_along, kernel, launch_iota, poisoned, with_guard};

/// The lines that a subscriber wrote.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The events, as JSON, and the numbers, by name and label, that `body` causes.
pub(crate) fn observe(body: impl FnOnce()) -> (Vec<Value>, BTreeMap<String, u64>) {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .without_time()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .finish();
    let recorder = DebuggingRecorder::new();
    tracing::subscriber::with_default(subscriber, || metrics::with_local_recorder(&recorder, body));
    let bytes = lines.0.lock().expect("no thread panicked");
    let events = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let events = events.map(|line| serde_json::from_slice(line).expect("JSON")).collect();
    let numbers = recorder.snapshotter().snapshot().into_vec().into_iter().map(|entry| {
        let (key, _, _, value) = entry;
        let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
        let number = match value {
            DebugValue::Counter(number) => number,
            DebugValue::Histogram(samples) => u64::try_from(samples.len()).expect("few"),
            DebugValue::Gauge(_) => 0,
        };
        (format!("{} {}", key.key().name(), labels.join(",")).trim().to_owned(), number)
    });
    (events, numbers.collect())
}

/// Launches `fake_iota_y` over `items` items.
fn launch(guard: &Guard, items: u64, with_batch: bool) -> bool {
    let stream = context(guard).default_stream();
    let mut out = poisoned(&stream, items);
    let kernel = kernel(guard, "fake_iota_y");
    let (request, batch) = items_along(Axis::Y, items);
    let launch = (&request, with_batch.then_some(&batch));
    launch_iota(guard, &kernel, launch, &stream, &mut out).is_ok()
}

#[test]
fn a_rejection_names_rule_axis_value_and_limit() {
    with_guard(&[], |guard| {
        let (events, numbers) = observe(|| assert!(!launch(&guard, 65_536, false)));
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0]["level"], "WARN");
        assert_eq!(
            events[0]["fields"],
            json!({
                "message": "launch rejected",
                "rule": "grid-dim-y",
                "axis": "y",
                "requested": 65_536,
                "limit": 65_535,
                "owner": "NVIDIA H200",
                "remedy": "split axis y into 2 launches of 32768, or fold it into x",
            })
        );
        let expected = BTreeMap::from([("gridguard_rejections_total grid-dim-y".into(), 1)]);
        assert_eq!(numbers, expected);
    });
}

#[test]
fn a_split_launch_is_an_event_after_its_launches() {
    with_guard(&[], |guard| {
        let (events, numbers) = observe(|| {
            assert!(launch(&guard, 65_536, true));
            assert!(launch(&guard, 8, true));
        });
        assert_eq!(events.len(), 1, "a launch in one piece is no event: {events:?}");
        assert_eq!(
            events[0]["fields"],
            json!({
                "message": "launch split",
                "kernel": "fake_iota_y",
                "launches": 2,
                "items": 65_536,
                "largest": 32_768,
                "strategy": "Chunked",
            })
        );
        let expected = [
            ("gridguard_launches_total", 3),
            ("gridguard_planning_seconds", 2),
            ("gridguard_requests_total", 2),
            ("gridguard_split_total", 1),
        ];
        assert_eq!(numbers, expected.map(|(name, number)| (name.into(), number)).into());
    });
}

#[test]
fn an_error_of_an_earlier_launch_names_the_call_and_the_suspects() {
    with_guard(&[("GRIDGUARD_FAKE_FAULT_LAUNCH", "0")], |guard| {
        let (events, numbers) = observe(|| {
            assert!(launch(&guard, 8, true));
            let stream = context(&guard).default_stream();
            guard.synchronize(&stream).expect_err("the launch was at fault");
        });
        let late: Vec<_> = events.iter().filter(|event| event["level"] == "ERROR").collect();
        assert!(!late.is_empty(), "{events:?}");
        assert_eq!(late[0]["fields"]["error"], "CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(late[0]["fields"]["suspects"], 1);
        let count = numbers.get("gridguard_late_errors_total CUDA_ERROR_ILLEGAL_ADDRESS");
        assert!(count.is_some(), "{numbers:?}");
    });
}

#[test]
fn a_refused_chunk_and_a_missed_shape_are_reported() {
    with_fake(&[("GRIDGUARD_FAKE_FAIL_LAUNCH", "1")], || {
        let guard = guard().with_profile(Arc::new(Profile::default()));
        let (events, numbers) = observe(|| {
            let key = Key { kernel: "softmax".into(), ..Key::default() };
            assert!(guard.tuned(&key, &["rows", "columns"], &[5, 4096]).entry.is_none());
            assert!(!launch(&guard, 65_536, true), "the second chunk is refused");
        });
        assert_eq!(events[0]["fields"]["kernel"], "softmax");
        assert_eq!(events[0]["fields"]["matched"], "default");
        let message = "a request stopped before its end";
        let refused = |event: &&Value| event["fields"]["message"] == message;
        let refused = events.iter().find(refused).expect("an event of the refusal");
        assert_eq!(refused["fields"]["launches"], 1);
        assert_eq!(numbers.get("gridguard_profile_lookups_total default"), Some(&1));
        assert_eq!(numbers.get("gridguard_refused_by_driver_total"), Some(&1));
        assert_eq!(numbers.get("gridguard_launches_total"), Some(&1));
    });
}

#[test]
fn a_guard_that_falls_back_to_the_host_says_why() {
    with_fake(&[("CUDA_VISIBLE_DEVICES", "")], || {
        let (events, _) = observe(|| assert!(!Guard::best_or_host().is_cuda()));
        assert_eq!(events.len(), 1, "{events:?}");
        let reason = events[0]["fields"]["reason"].as_str().expect("a text");
        assert!(reason.contains("sees no device"), "{reason}");
    });
}
