//! `gridguard profile verify` on the host.

use std::io::{self, BufRead, BufReader};

use gridguard::profile::{Backend, DeviceIdentity, Entry, L2, Policy, Submission, Summary};

use super::entries::{LATE, document, folder, host, norm, profile, put, put_text, text};
use crate::command::{run, signal, start};

/// With hot caches, because flushing them takes long in a debug build.
fn hot(mut entry: Entry) -> Entry {
    entry.key.policy = Policy { l2: L2::Hot, submission: Submission::Eager };
    entry
}

#[test]
fn a_choice_that_was_just_tuned_passes() {
    let folder = folder();
    let args = "--kernel rms_norm --shape 1000x8 --dtype f32 --profile p.ron";
    let tune = "tune --device host --policy hot-eager";
    run(folder.path(), &format!("{tune} {args}")).exits(0);
    // However busy the machine is, one launch more or less makes no such difference.
    let verify = "verify p.ron --tolerance 1000%";
    let ran = profile(&folder, verify).exits(0);
    assert!(
        ran.out.starts_with("kernel    types  shape   measured for  stored choice"),
        "{}",
        ran.out
    );
    ran.prints("1 entry verified, regret ");
    let json = profile(&folder, &format!("{verify} --format json")).exits(0).json();
    assert_eq!(
        (&json["failed"], &json["left"], &json["interrupted"]),
        (&0.into(), &0.into(), &false.into())
    );
    assert!(json["verified"][0]["median_ns"].as_u64() > Some(0));
    assert!(!folder.path().join("p.ron.unfinished").exists(), "nothing is kept");
}

#[test]
fn a_changed_time_is_reported_as_drift() {
    let folder = folder();
    let ages = |ns| Summary { median_ns: ns, low_ns: ns, high_ns: ns, samples: 20 };
    // An hour for a few thousand elements, which no machine takes.
    let drifted = hot(Entry { chosen: ages(3_600_000_000_000), ..norm(1000, LATE) });
    put(&folder, "p.ron", [drifted]);
    let verify = "verify p.ron --tolerance 1000%";
    let ran = profile(&folder, verify).exits(0);
    let told = "drift: rms_norm f32, hot-eager, throughput, 1000x8: the same choice took 3600.0 s on \
                2026-11-20T12:00:00Z and takes ";
    ran.prints(told);
    assert!(
        ran.out.contains(", 0.000 times as long\n") && !ran.out.contains("lost: "),
        "{}",
        ran.out
    );
    assert!(ran.out.ends_with(", 0 above 1000.0 %, 1 drifted\n"), "{}", ran.out);
    let json = profile(&folder, &format!("{verify} --format json")).exits(0).json();
    let drift = &json["verified"][0]["drift"];
    assert_eq!((&json["drifted"], &drift["tuned_ns"]), (&1.into(), &3_600_000_000_000_u64.into()));
    assert_eq!(drift["tuned_on"], LATE);
    assert_eq!(drift["now"].as_str().map(str::len), Some(LATE.len()));
    assert_eq!(drift["now_ns"], json["verified"][0]["median_ns"]);
    assert!(drift["ratio"].as_f64() < Some(1.0), "{drift}");
}

#[test]
fn illegal_and_stale_choices_are_reported() {
    let folder = folder();
    let mut illegal = hot(norm(2000, LATE));
    illegal.parameters = vec![("warps".into(), 4)];
    let mut edited = hot(norm(3000, LATE));
    edited.key.source = "0123456789abcdef".into();
    put(&folder, "p.ron", [illegal, edited]);
    let before = text(&folder, "p.ron");
    let json = profile(&folder, "verify p.ron --format json").exits(1);
    assert!(json.err.contains(
        "skipped: rms_norm f32, hot-eager, throughput, 3000x8: the kernel's source has changed"
    ));
    json.notes("rms_norm f32 2000x8: the stored choice is no longer valid: ");
    let json = json.json();
    assert_eq!((&json["above_tolerance"], &json["failed"]), (&0.into(), &1.into()));
    assert_eq!(json["passed_over"][0]["shape"][0][1], 3000);
    assert_eq!(text(&folder, "p.ron"), before, "nothing is published");
}

#[test]
fn a_profile_of_another_device_is_not_measured() {
    let folder = folder();
    let cuda = DeviceIdentity { backend: Backend::Cuda, processor: None, ..host() };
    put_text(&folder, "cuda.ron", &document(cuda, [norm(300, LATE)]).to_ron());
    profile(&folder, "verify cuda.ron --device host")
        .exits(2)
        .notes("cuda.ron: the backend is cuda in the profile");
    put(&folder, "host.ron", [norm(300, LATE)]);
    profile(&folder, "verify host.ron --gpu a100-80gb")
        .exits(2)
        .notes("host.ron: the device name is");
    profile(&folder, "verify host.ron --kernel softmax")
        .exits(3)
        .notes("host.ron: no entry can be measured");
}

#[test]
fn an_interrupted_verification_reports_what_it_measured() {
    let folder = folder();
    let mut illegal = hot(norm(200, LATE));
    illegal.parameters = vec![("warps".into(), 4)];
    put(&folder, "p.ron", [hot(norm(100, LATE)), illegal, hot(norm(250_000, LATE))]);
    let mut child = start(folder.path(), "profile verify p.ron --tolerance 1000%");
    // Entries are measured in order, and the last takes longer than a signal.
    let mut notes = BufReader::new(child.stderr.take().expect("its diagnostics")).lines();
    let is_second = |line: io::Result<String>| line.expect("text").contains("no longer valid");
    assert!(notes.any(is_second));
    let ran = signal(child, "-INT").exits(130);
    assert!(
        ran.out.contains("2 entries verified") && ran.out.contains(", 1 failed, 1 not measured"),
        "{}",
        ran.out
    );
}
