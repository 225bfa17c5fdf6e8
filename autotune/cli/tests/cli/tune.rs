//! `gridguard tune` on the host: its profiles, output and exit codes.

mod idle;
mod interrupted;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::command::{Ran, command, parsed, run, signal, start, wait_until};
use gridguard::profile::{
    DeviceIdentity, Document, Environment, Key, MatchKind, MissLog, Objective, StoredChoice,
};
use gridguard::{DeviceLimits, catalog};
use tempfile::TempDir;

/// Hot caches, because flushing them takes long in a debug build.
const HOST: &str = "tune --device host --policy hot-eager";
/// The only candidates are the defaults, which that profile confirms: however busy the machine is, nothing is undecided.
const DEFAULTS: &str = "--from h200";
const NORM: &str = "--kernel rms_norm --dtype f32";
/// The search of its default takes minutes.
const SLOW: &str = "3000000x8";

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn tune(folder: &Path, args: &str) -> Ran {
    run(folder, &format!("{HOST} {DEFAULTS} {args}"))
}

/// Tunes norms of these shapes into `p.ron`.
fn tune_norms(folder: &Path, shapes: &[&str], more: &str) -> Ran {
    run(folder, &norms(shapes, more))
}

fn norms(shapes: &[&str], more: &str) -> String {
    let shapes = shapes.join(" --shape ");
    let from = if more.contains("--from") || more.contains("--verify") { "" } else { DEFAULTS };
    format!("{HOST} {NORM} --shape {shapes} --profile p.ron {from} {more}")
}

fn keys(document: &Document) -> BTreeSet<(Key, String)> {
    let key = |entry: &gridguard::profile::Entry| (entry.key.clone(), format!("{:?}", entry.shape));
    document.entries().iter().map(key).collect()
}

fn rows(document: &Document) -> Vec<u64> {
    document.entries().iter().map(|entry| entry.shape[0].1).collect()
}

#[test]
fn a_choice_is_measured_again_only_with_again() {
    let folder = folder();
    let first = tune_norms(folder.path(), &["300x8"], "").exits(0);
    assert!(first.out.starts_with("rms_norm f32 300x8 on the host as NVIDIA H200: throughput\n"));
    for words in ["chunks", "vs default", "\ndefault ", "1 tuned, in ", "profile p.ron\n"] {
        first.prints(words);
    }
    let profile = folder.path().join("p.ron");
    let document = parsed(&profile);
    let [entry] = document.entries() else { panic!("one entry: {document}") };
    assert_eq!((&*entry.key.kernel, &*entry.key.dtypes), ("rms_norm", "f32"));
    assert_eq!(entry.key.policy.to_string(), "hot-eager");
    assert!(entry.chosen.median_ns > 0 && entry.found.samples > 0);
    assert_eq!(entry.found.date.len(), "2026-11-20T12:00:00Z".len());
    assert!(!folder.path().join("p.ron.unfinished").exists());

    let second = tune_norms(folder.path(), &["300x8"], "").exits(0);
    assert!(second.out.starts_with("0 tuned, 1 already in the profile, in "), "{}", second.out);
    assert_eq!(parsed(&profile), document);
    tune_norms(folder.path(), &["300x8"], "--again").exits(0).prints("1 tuned, in ");
    assert_eq!(keys(&parsed(&profile)), keys(&document));
}

#[test]
fn another_profiles_choices_are_the_only_candidates() {
    let folder = folder();
    tune_norms(folder.path(), &["300x8", "700x8", "900x16"], "")
        .exits(0)
        .prints("left out one by one: 3 shapes");
    let document = parsed(&folder.path().join("p.ron"));
    assert_eq!(document.decisions().len(), 1, "{document}");
    let mut other = Document::new(document.device().clone(), document.environment().clone());
    let mut entry = document.entries()[0].clone();
    entry.choice = StoredChoice::Chunked { max_items: 100.try_into().expect("positive") };
    other.insert(entry).expect("valid");
    fs::write(folder.path().join("other.ron"), other.to_string()).expect("written");
    let rows = |from: &str| {
        let ran =
            tune_norms(folder.path(), &["300x8"], &format!("--again --format json --from {from}"));
        ran.json()["tuned"][0]["report"]["rows"].as_array().expect("rows").clone()
    };
    let chunks: Vec<_> =
        rows("other.ron").iter().map(|row| row["candidate"]["largest_chunk"].clone()).collect();
    assert_eq!((chunks.len(), chunks.contains(&100.into())), (2, true), "{chunks:?}");
    assert_eq!(rows("h200").len(), 1, "its profile confirms the default");
    for (from, message) in [
        ("h3", "no GPU \"h3\" in the catalogue"),
        ("t4", "--from t4: there is no built-in profile"),
    ] {
        tune_norms(folder.path(), &["300x8"], &format!("--from {from}")).exits(2).notes(message);
    }
}

#[test]
fn a_stored_choice_is_verified_by_one_launch_and_a_wrong_one_is_removed() {
    let folder = folder();
    let file = folder.path().join("p.ron");
    let shapes = ["300x8", "700x8"];
    tune_norms(folder.path(), &shapes, "").exits(0);
    let stored = parsed(&file);
    tune_norms(folder.path(), &shapes, "--verify").exits(0).prints("2 verified, in ");
    assert_eq!(parsed(&file), stored, "the same versions, the same choices");
    let mut wrong = stored.clone();
    let mut entry = stored.entries()[0].clone();
    entry.parameters = vec![("warps".into(), 3)];
    wrong.insert(entry).expect("valid");
    fs::write(&file, wrong.to_string()).expect("written");
    let ran = tune_norms(folder.path(), &[&shapes[..], &["900x8"]].concat(), "--verify").exits(1);
    ran.prints("1 verified, 1 failed, in ")
        .notes("rms_norm f32 300x8 on the host as NVIDIA H200: its choice is not legal");
    assert_eq!(rows(&parsed(&file)), [700]);
}

#[test]
fn an_entry_states_its_tolerance_or_that_the_bits_are_the_same() {
    let folder = folder();
    let tolerance = |more: &str| {
        let ran = tune_norms(folder.path(), &["300x8"], more).exits(0);
        (parsed(&folder.path().join("p.ron")).entries()[0].found.tolerance.clone(), ran)
    };
    assert_eq!(tolerance("").0, "1e-6");
    let (of_same_bits, ran) = tolerance("--again --same-bits");
    assert_eq!(of_same_bits, "0");
    // 300 x 8 numbers are read and written: 19,200 bytes.
    match parsed(&folder.path().join("p.ron")).attainable() {
        [moved] => assert!(moved.bytes == 16_384 && moved.bytes_per_second > 0, "{moved:?}"),
        others => {
            assert_eq!(others, []);
            ran.notes("other processes disturbed every sample");
        }
    }
    let args = "profile explain rms_norm 300x8 --dtype f32 --policy hot-eager --profile p.ron";
    run(folder.path(), args).prints("bits: the same as the default's\n");
}

#[test]
fn without_a_gpu_nothing_is_measured_unless_the_host_is_asked_for() {
    let folder = folder();
    let args = "tune --kernel rms_norm --profile p.ron";
    let mut command = command(folder.path(), args);
    let ran = Ran::from(command.env("CUDA_VISIBLE_DEVICES", "").output().expect("runs")).exits(3);
    assert!(ran.err.starts_with("error: there is no GPU to measure on: "), "{}", ran.err);
    let advice = "to measure on the host instead, use --device host\n";
    assert!(ran.err.ends_with(advice), "{}", ran.err);
    assert_eq!((&*ran.out, fs::read_dir(folder.path()).expect("a folder").count()), ("", 0));
    run(folder.path(), "tune --gpu h200 --profile p.ron").exits(2).notes("it needs --device host");
}

/// The date so many hours from now.
fn hours_from_now(hours: u64) -> String {
    let then = SystemTime::now() + Duration::from_secs(hours * 3600);
    humantime::format_rfc3339_seconds(then).to_string()
}

#[test]
fn a_new_measurement_replaces_an_entry_of_any_date() {
    let folder = folder();
    let profile = folder.path().join("p.ron");
    tune_norms(folder.path(), &["300x8"], "").exits(0);
    let first = parsed(&profile);
    let with_date = |date: &str| first.to_string().replace(&first.entries()[0].found.date, date);
    // By the clock of another machine, which is ahead.
    let ahead = hours_from_now(20);
    fs::write(&profile, with_date(&ahead)).expect("written");
    let ran = tune_norms(folder.path(), &["300x8"], "--again").exits(0);
    ran.prints("1 tuned, in ");
    assert!(!ran.err.contains("newer than this run"), "{}", ran.err);
    let document = parsed(&profile);
    let [entry] = document.entries() else { panic!("one entry: {document}") };
    assert!(entry.found.date < ahead, "{}", entry.found.date);
    // By no clock.
    for (date, message) in
        [("zzz", "\"zzz\" is not a valid date"), ("9999-12-31T23:59:59Z", "in the future")]
    {
        fs::write(&profile, with_date(date)).expect("written");
        let ran = tune_norms(folder.path(), &["300x8"], "").exits(0);
        assert!(ran.out.contains("1 tuned, in "), "the entry is not used: {}", ran.out);
        assert!(
            ran.err.contains(message) && ran.err.contains("the original is kept as"),
            "{}",
            ran.err
        );
        let document = parsed(&profile);
        let [entry] = document.entries() else { panic!("one entry: {document}") };
        assert!(*entry.found.date < *ahead, "{}", entry.found.date);
    }
}

#[test]
fn replacing_the_entry_of_another_process_is_reported() {
    let folder = folder();
    let profile = folder.path().join("p.ron");
    let own = tempfile::tempdir().expect("a folder");
    tune_norms(own.path(), &["300x8"], "").exits(0);
    let mut entry = parsed(&own.path().join("p.ron")).entries()[0].clone();
    entry.shape[0].1 = 100_000;
    entry.found.date = hours_from_now(20);
    let device = parsed(&own.path().join("p.ron")).device().clone();
    let mut other = Document::new(device, Environment::host());
    other.insert(entry.clone()).expect("within the limits");
    let child = start(folder.path(), &norms(&["100000x8"], ""));
    wait_until(|| journaled(folder.path(), "100000x8") > 5);
    let published = gridguard::profile::publish(&profile, &other).expect("published");
    assert_eq!(published.outcome, [], "the command was faster");
    let ran = Ran::from(child.wait_with_output().expect("ends")).exits(0);
    let message = "p.ron: replaced an entry that is newer than this run: rms_norm f32";
    assert!(ran.err.contains(message) && ran.err.contains(&entry.found.date), "{}", ran.err);
    assert!(ran.err.ends_with(": the kept one replaces it\n"), "{}", ran.err);
    assert_ne!(parsed(&profile).entries()[0], entry);
}

#[test]
fn a_profile_keeps_its_mode_and_its_link() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = folder();
    let [link, target] = ["p.ron", "shared.ron"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink("shared.ron", &link).expect("a link");
    tune_norms(folder.path(), &["300x8"], "").exits(0);
    fs::set_permissions(&target, fs::Permissions::from_mode(0o660)).expect("its mode");
    tune_norms(folder.path(), &["200x8"], "").exits(0);
    assert!(link.is_symlink());
    assert_eq!(rows(&parsed(&target)), [200, 300]);
    assert_eq!(fs::metadata(&target).expect("there").permissions().mode() & 0o777, 0o660);
}

#[test]
fn a_run_as_json_is_one_document() {
    let folder = folder();
    let shapes = ["300x8", "200x8", "300x8"];
    let ran = tune_norms(folder.path(), &shapes, "--format json").exits(0);
    let json = ran.json();
    assert_eq!(json["profiles"][0], "p.ron");
    assert_eq!((&json["left"], &json["known"]), (&0.into(), &0.into()));
    assert_eq!(json["interrupted"], false);
    assert_eq!(json["tuned"].as_array().map(Vec::len), Some(2), "each once");
    assert_eq!(json["tuned"][0]["problem"], "rms_norm f32 300x8");
    assert_eq!(json["tuned"][0]["report"]["complete"], true);
}

#[test]
fn missed_shapes_are_tuned_with_their_policy_and_objective() {
    let folder = folder();
    let log = folder.path().join("misses.ron");
    let misses = MissLog::new(10);
    let policy = gridguard::profile::Policy {
        l2: gridguard::profile::L2::Hot,
        submission: gridguard::profile::Submission::Graph,
    };
    let objective = Objective::Latency { max_launch_us: 900_000 };
    let (kernel, dtypes) = ("rms_norm".to_owned(), "f32".to_owned());
    let key = Key { kernel, dtypes, policy, objective, ..Key::default() };
    misses.record(&key, &["rows", "columns"], &[300, 8], MatchKind::Default);
    let causal =
        Key { kernel: "temporal_attention".into(), variant: "f32 causal".into(), ..key.clone() };
    let names = ["items", "heads", "frames", "head_dim"];
    misses.record(&causal, &names, &[4, 1, 4, 4], MatchKind::Default);
    misses.write(&log).expect("written");
    let args = format!("tune --device host {DEFAULTS} --shapes misses.ron --profile p.ron");
    run(folder.path(), &args).exits(2).notes("variant \"f32 causal\"");
    let document = parsed(&folder.path().join("p.ron"));
    let [entry] = document.entries() else { panic!("one entry: {document}") };
    assert_eq!((entry.key.policy, entry.key.objective), (policy, objective));
}

#[test]
fn shards_merge_to_the_same_entries_as_one_run() {
    let shapes = ["300x8", "200x8", "100x16"];
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    tune_norms(folder.path(), &shapes, "").exits(0);
    for (shard, file) in [("0/2", "0.ron"), ("1/2", "1.ron")] {
        let args = norms(&shapes, &format!("--shard {shard}")).replace("p.ron", file);
        run(folder.path(), &args).exits(0);
    }
    assert_eq!(
        (rows(&parsed(&path("0.ron"))), rows(&parsed(&path("1.ron")))),
        (vec![100, 300], vec![200])
    );
    let merge = "profile merge 0.ron 1.ron --output all.ron";
    let merged = run(folder.path(), merge).exits(0);
    assert_eq!(merged.out, "3 entries from 2 files, 0 conflicts\nprofile all.ron\n");
    assert_eq!(keys(&parsed(&path("all.ron"))), keys(&parsed(&path("p.ron"))));
}

#[test]
fn missed_shapes_of_unknown_kernels_are_skipped_and_reported() {
    let folder = folder();
    let misses = MissLog::new(10);
    let names = ["rows", "columns"];
    let key = |kernel: &str| Key { kernel: kernel.into(), dtypes: "f32".into(), ..Key::default() };
    misses.record(&key("rms_norm"), &names, &[300, 8], MatchKind::Default);
    misses.record(&key("softmax"), &names, &[200, 8], MatchKind::Bucket);
    misses.write(&folder.path().join("misses.ron")).expect("written");
    tune(folder.path(), "--shapes misses.ron --profile p.ron").exits(0);
    let kernels = |document: &Document| -> Vec<String> {
        document.entries().iter().map(|entry| entry.key.kernel.clone()).collect()
    };
    assert_eq!(kernels(&parsed(&folder.path().join("p.ron"))), ["rms_norm", "softmax"]);

    misses.record(&key("frobnicate"), &names, &[2, 2], MatchKind::Default);
    misses.write(&folder.path().join("misses.ron")).expect("written");
    tune(folder.path(), "--shapes misses.ron --profile p.ron")
        .exits(2)
        .notes("skipped: misses.ron: unknown kernel `frobnicate`")
        .prints("2 already in the profile");
}

#[test]
fn invalid_problems_are_usage_errors() {
    let folder = folder();
    let cases: [(&str, &str); 11] = [
        ("--kernel norm", "unknown kernel `norm`"),
        ("--kernel norm --shape 2x2", "unknown kernel `norm`"),
        ("--kernel rms_norm --shape 2x2x2", "rms_norm has the sizes rows x columns"),
        ("--kernel rms_norm --shape 2xtwo", "`two` is not a size"),
        ("--kernel rms_norm --shape 0x2", "`0x2` has no items"),
        ("--kernel rms_norm --shape 2x0", "columns is 0, the kernel takes 1 to"),
        ("--kernel rms_norm --shape 2x2 --dtype f64", "`f64`"),
        ("--objective speed", "expected throughput"),
        ("--policy warm", "expected cold or hot"),
        ("--shard 2/2", "is not a shard"),
        ("--shapes none.ron", "none.ron: no such file"),
    ];
    for (args, message) in cases {
        let args = &format!("tune --device host --profile p.ron {args}");
        let ran = run(folder.path(), args).exits(2);
        assert!(ran.err.contains(message) && ran.out.is_empty(), "{args:?}: {}", ran.err);
    }
    assert!(!folder.path().join("p.ron").exists());
}

#[test]
fn objectives_have_separate_entries() {
    let folder = folder();
    let memory = "--objective memory:4096:64";
    tune_norms(folder.path(), &["3000x8"], memory).exits(0);
    tune_norms(folder.path(), &["3000x8"], "--objective latency:1s").exits(0);
    let document = parsed(&folder.path().join("p.ron"));
    let objectives: Vec<_> = document.entries().iter().map(|entry| entry.key.objective).collect();
    assert_eq!(
        objectives,
        [
            Objective::Latency { max_launch_us: 1_000_000 },
            Objective::Memory { bytes_per_item: 64, bytes: 4096 }
        ]
    );
    let StoredChoice::Chunked { max_items } = document.entries()[1].choice else {
        panic!("64 items fit into the workspace: {document}");
    };
    assert!(max_items.get() <= 64);
}

/// The number of records in the journals of a profile.
fn journaled(folder: &Path, problem: &str) -> usize {
    let Ok(files) = fs::read_dir(folder.join("p.ron.unfinished")) else { return 0 };
    let of_problem =
        files.flatten().filter(|file| file.file_name().to_string_lossy().contains(problem));
    of_problem
        .filter_map(|file| fs::read_to_string(file.path()).ok())
        .map(|text| text.lines().count())
        .sum()
}

#[test]
fn a_search_runs_without_a_usable_journal() {
    let folder = folder();
    fs::write(folder.path().join("p.ron.unfinished"), "no folder").expect("written");
    let ran = tune_norms(folder.path(), &["300x8"], "").exits(0);
    ran.prints("1 tuned, in ");
    let note = "rms_norm f32 300x8: searched without a journal: cannot open its journal: ";
    assert!(ran.err.starts_with(note), "{}", ran.err);
}

#[test]
fn a_search_that_another_process_does_is_left() {
    let folder = folder();
    let child = start(folder.path(), &norms(&[SLOW], ""));
    wait_until(|| journaled(folder.path(), SLOW) > 5);
    let ran = tune_norms(folder.path(), &[SLOW], "").exits(1);
    let message = format!("its journal is locked by process {}", child.id());
    ran.notes(&message);
    assert!(ran.out.starts_with("0 tuned, 1 left for the next run, in "), "{}", ran.out);
    signal(child, "-INT").exits(130);
}

#[test]
fn measuring_processes_end_under_an_ignored_sigchld() {
    let folder = folder();
    let plain = command(folder.path(), &norms(&["300x8"], "--format json"));
    let mut command = std::process::Command::new("env");
    command.arg("--ignore-signal=CHLD").arg(plain.get_program());
    command.args(plain.get_args()).current_dir(folder.path()).env("GRIDGUARD_PROFILES", "off");
    let ran = Ran::from(command.output().expect("the command runs")).exits(0);
    assert_eq!(ran.json()["unended"], serde_json::json!([]));
}

#[test]
fn a_profile_of_another_device_is_rejected_before_anything_is_measured() {
    let folder = folder();
    let profile = folder.path().join("p.ron");
    let h200 = &catalog::gpu("h200").expect("in the catalogue").limits;
    let cuda = DeviceIdentity::new(h200);
    let other = DeviceIdentity::new(&DeviceLimits::any_device()).on_host();
    for (device, message) in [(cuda, "the backend is cuda"), (other, "the device name is")] {
        let text = Document::new(device, Environment::default()).to_string();
        fs::write(&profile, &text).expect("written");
        let ran = tune_norms(folder.path(), &["300x8"], "").exits(2);
        assert!(ran.err.contains(message) && ran.out.is_empty(), "{}", ran.err);
        assert_eq!(fs::read_to_string(&profile).expect("there"), text);
    }
    fs::write(&profile, "(schema: 3, entries: [])").expect("written");
    tune_norms(folder.path(), &["300x8"], "").exits(2).notes("schema 3");
}

#[test]
fn problems_after_the_time_limit_are_left_for_the_next_run() {
    let folder = folder();
    let shapes = ["300x8", SLOW, "200x8"];
    // Twice as much until it is enough for the first, however busy the machine is. Then it is too little for the second.
    let budgets = (2..10).map(|power| format!("{}s", 1 << power));
    let mut runs = budgets
        .map(|budget| tune_norms(folder.path(), &shapes, &format!("--budget {budget}")).exits(1));
    let is_enough = |ran: &Ran| !ran.out.contains("0 tuned, 3 left for the next run");
    runs.find(is_enough).expect("a problem is tuned").prints("1 tuned, 2 left for the next run");
    assert_eq!(rows(&parsed(&folder.path().join("p.ron"))), [300]);
}

#[test]
fn problems_beyond_the_memory_are_skipped_and_the_others_are_tuned() {
    let folder = folder();
    // 64 and 640 KB of input, and three times as much with the output and its copy.
    let ran = tune_norms(folder.path(), &["2000x8", "20000x8"], "--memory 1MiB").exits(0);
    assert!(
        ran.err.contains("rms_norm f32 20000x8, hot-eager, throughput: it takes 1920000 bytes")
    );
    assert_eq!(rows(&parsed(&folder.path().join("p.ron"))), [2000]);
}

#[test]
fn entries_of_earlier_code_are_dropped() {
    let folder = folder();
    tune_norms(folder.path(), &["300x8"], "").exits(0);
    let profile = folder.path().join("p.ron");
    let source = parsed(&profile).entries()[0].key.source.clone();
    let text = fs::read_to_string(&profile).expect("a profile");
    fs::write(&profile, text.replace(&source, "0123abcd")).expect("written");
    tune_norms(folder.path(), &["400x8"], "").exits(0);
    assert_eq!(rows(&parsed(&profile)), [400]);
}
