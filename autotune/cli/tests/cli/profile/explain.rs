//! `gridguard profile explain`: which entry matches.

use std::fs;

use expect_test::expect_file;
use gridguard::DeviceLimits;
use gridguard::profile::{
    Backend, DecisionList, DecisionRow, DeviceIdentity, Entry, Key, L2, Policy, Processor,
};
use serde_json::Value;
use tempfile::TempDir;

use super::entries::{LATE, chunks_of, document, folder, host, norm, profile, put, put_text};
use crate::command::{Ran, command};

fn explain(folder: &TempDir, shape: &str, code: i32) -> Value {
    let whose = "--dtype f32 --device host --profile p.ron --format json";
    profile(folder, &format!("explain rms_norm {shape} {whose}")).exits(code).json()
}

#[test]
fn a_lookup_reports_how_it_matches() {
    let folder = folder();
    let chunked = Entry { choice: chunks_of(32_768), launches: 3, ..norm(70_000, LATE) };
    put(&folder, "p.ron", [chunked, norm(300_000, LATE)]);

    let exact = explain(&folder, "70000x8", 0);
    assert_eq!((&exact["matched"], &exact["layer"]), (&"exact".into(), &"explicit".into()));
    assert_eq!(exact["file"], "p.ron");
    assert_eq!(
        (&exact["plan"]["strategy"], &exact["plan"]["launches"]),
        (&"chunked".into(), &3.into())
    );

    let bucket = explain(&folder, "71000x8", 0);
    assert_eq!(
        (&bucket["matched"], &bucket["entry"]["shape"][0][1]),
        (&"bucket".into(), &70_000.into())
    );
    let neighbour = explain(&folder, "140000x8", 0);
    assert_eq!(neighbour["matched"], "neighbour");
    assert_eq!(neighbour["distance_octaves"], 1.0);
    let default = explain(&folder, "20x8", 1);
    assert_eq!(default["matched"], "default");
    assert_eq!(default["reason"], "rows 20 is outside the tuned range: tune this shape");
    assert_eq!(default["plan"]["strategy"], "whole");
}

#[test]
fn a_row_is_named_with_the_measured_shapes_on_both_sides() {
    let folder = folder();
    let (narrow, wide) =
        (norm(70_000, LATE), Entry { choice: chunks_of(32_768), ..norm(400_000, LATE) });
    let mut document = document(host(), [narrow.clone(), wide.clone()]);
    let row = |when, entry: &Entry| DecisionRow {
        when,
        choice: entry.choice,
        parameters: entry.parameters.clone(),
    };
    let list = DecisionList {
        key: wide.key.clone(),
        within: vec![("rows".into(), (10_000, 800_000)), ("columns".into(), (4, 16))],
        rows: vec![row(vec![("rows".into(), (200_000, 800_000))], &wide), row(vec![], &narrow)],
    };
    document.decide(list).expect("it agrees");
    put_text(&folder, "p.ron", &document.to_string());
    let found = explain(&folder, "300000x9", 0);
    assert_eq!(
        (&found["matched"], &found["entry"]["choice"]["chunked"]["max_items"]),
        (&"row".into(), &32_768.into())
    );
    assert_eq!(found["decision"]["inside"][0][1], 400_000);
    let args = "explain rms_norm 300000x9 --dtype f32 --device host --profile p.ron";
    profile(&folder, args).exits(0).prints(
        "row 1 of 2: rows 200000 to 800000; measured on this side: 400000x8; measured on the other: 70000x8\n",
    );
    assert_eq!(explain(&folder, "70000x8", 0)["decision"], Value::Null, "an entry decides");
}

#[test]
fn a_lookup_as_text_shows_the_entry_and_the_plan() {
    let folder = folder();
    let chunked = Entry { choice: chunks_of(32_768), launches: 3, ..norm(70_000, LATE) };
    let mut stale = document(host(), [chunked, norm(100_000, LATE)]);
    stale.retain(|entry| entry.found.date == LATE);
    let text = stale.to_string().replace("tuner: \"0.1.0\"", "tuner: \"0.0.9\"");
    put_text(&folder, "p.ron", &text);
    let args = "explain rms_norm 71000x8 --dtype f32 --device host";
    let ran = profile(&folder, &format!("{args} --profile p.ron")).exits(0);
    let source = &norm(1, LATE).key.source;
    let expected = format!(
        "\
rms_norm f32 71000x8 on the host as NVIDIA H200
key: source {source}, cold-eager, throughput
match: bucket, entry 70000x8 of explicit profile p.ron
choice: chunks of 32768, 3 launches for the entry's shape
measured: 2.000 ms in 20 samples, -20.0 % vs default 2.500 ms
tuned: 6 candidates, 0 failed, 80 samples, 2026-11-20T12:00:00Z
plan: chunked, 3 launches of up to 23668 items
note: explicit profile p.ron: 2 entries measured with tuner 0.0.9, this is 0.1.0: still used
"
    );
    assert_eq!(ran.out, expected);
}

#[test]
fn a_lookup_reads_the_user_s_profiles_also_for_an_absent_gpu() {
    let folder = folder();
    let own = host().file_name();
    put(&folder, &own, [norm(70_000, LATE)]);
    let cuda = DeviceIdentity { backend: Backend::Cuda, processor: None, ..host() };
    put_text(&folder, "nvidia-h200.ron", &document(cuda, [norm(500, LATE)]).to_string());
    let ask = |shape: &str, whose: &str| -> Value {
        let args = &format!("profile explain rms_norm {shape} --dtype f32 --format json {whose}");
        let mut asked = command(folder.path(), args);
        let ran: Ran = asked.env("GRIDGUARD_PROFILES", ".").output().expect("runs").into();
        ran.exits(0).json()
    };
    let host = ask("70000x8", "--device host");
    assert_eq!((&host["layer"], &host["file"]), (&"user".into(), &format!("./{own}").into()));
    let gpu = ask("500x8", "--gpu h200");
    assert_eq!((&gpu["matched"], &gpu["device"]["backend"]), (&"exact".into(), &"cuda".into()));
}

#[test]
fn a_lookup_without_a_profile_or_after_a_kernel_change_returns_the_default() {
    let folder = folder();
    let mut edited = norm(70_000, LATE);
    edited.key.source = "0123456789abcdef".into();
    put(&folder, "p.ron", [edited]);
    let json = explain(&folder, "70000x8", 1);
    assert_eq!(json["reason"], "the kernel was edited since it was tuned: re-tune it");
    fs::remove_file(folder.path().join("p.ron")).expect("removed");
    let json = explain(&folder, "70000x8", 1);
    assert_eq!(json["reason"], "the kernel was not tuned: tune it");
    assert_eq!(
        json["findings"][0],
        "reject: explicit profile p.ron: the file does not exist: give another path, or tune"
    );
    profile(&folder, "explain norm 2x2 --gpu h200").exits(2);
    profile(&folder, "explain rms_norm 2x2 --gpu voodoo").exits(2);
}

#[test]
fn entries_of_another_or_an_unnamed_processor_are_not_used() {
    let folder = folder();
    let name = "Z80".to_owned();
    for (processor, whose) in
        [(Some(Processor { name, threads: 1 }), "Z80 with 1 thread"), (None, "unnamed")]
    {
        let other = DeviceIdentity { processor, ..host() };
        put_text(&folder, "p.ron", &document(other, [norm(70_000, LATE)]).to_string());
        let json = explain(&folder, "70000x8", 1);
        assert_eq!(json["matched"], "default");
        let finding = json["findings"][0].as_str().expect("a finding");
        let expected =
            format!("reject: explicit profile p.ron: the processor is {whose} in the profile and ");
        assert!(finding.starts_with(&expected), "{finding}");
        // Its owner can still read it.
        let shown = profile(&folder, "show p.ron").exits(0).out;
        assert!(shown.contains("\n1 entry\n"), "{shown}");
    }
}

#[test]
fn an_entry_whose_choice_is_illegal_here_is_replaced_by_the_default() {
    let folder = folder();
    let unknown = Entry { parameters: vec![("warps".into(), 4)], ..norm(70_000, LATE) };
    put(&folder, "p.ron", [unknown]);
    let json = explain(&folder, "70000x8", 1);
    assert_eq!((&json["matched"], &json["plan"]["strategy"]), (&"exact".into(), &"whole".into()));
    assert_eq!(json["plan"]["refused"], "rms_norm has no launch parameter warps, it has none");
}

/// An entry of a kernel that gridguard does not ship.
fn foreign(items: u64, source: &str, dtypes: &str) -> Entry {
    let mut entry = norm(items, LATE);
    entry.key = Key {
        kernel: "paged_attention".into(),
        source: source.into(),
        variant: "v2".into(),
        dtypes: dtypes.into(),
        ..Key::default()
    };
    entry.shape = vec![("sequences".into(), items), ("head_dim".into(), 128)];
    (entry.choice, entry.launches) = (chunks_of(256), 4);
    entry.parameters = vec![("block".into(), 64)];
    entry
}

fn explain_foreign(folder: &TempDir, shape: &str, more: &str) -> Ran {
    profile(folder, &format!("explain paged_attention {shape} --gpu h200 --profile p.ron {more}"))
}

fn put_for_the_gpu(folder: &TempDir, entries: impl IntoIterator<Item = Entry>) {
    let cuda = DeviceIdentity { backend: Backend::Cuda, processor: None, ..host() };
    put_text(folder, "p.ron", &document(cuda, entries).to_string());
}

#[test]
fn a_kernel_that_is_not_shipped_is_explained_from_its_entries() {
    let folder = folder();
    put_for_the_gpu(&folder, [foreign(1024, "4f2e", "f16"), foreign(8192, "4f2e", "f16")]);
    let ran = explain_foreign(&folder, "1100x128", "").exits(0);
    expect_file!["../screens/profile-explain.txt"].assert_eq(&ran.out);
    let json = explain_foreign(&folder, "1024x128", "--format json").exits(0).json();
    assert_eq!((&json["matched"], &json["plan"]), (&"exact".into(), &Value::Null));
    assert_eq!(json["entry"]["parameters"], serde_json::json!([["block", 64]]));
    let far = explain_foreign(&folder, "7x128", "--format json").exits(1).json();
    assert_eq!(far["reason"], "sequences 7 is outside the tuned range: tune this shape");
    let short = explain_foreign(&folder, "7", "--format json").exits(1).json();
    assert_eq!(short["reason"], "1 sizes were given, the entries have 2: pass 2 sizes");
    let other = explain_foreign(&folder, "1024x128", "--policy hot-graph --format json");
    let other = other.exits(1).json();
    assert_eq!(other["reason"], "the kernel was not tuned: tune it");
}

#[test]
fn a_file_says_device_and_policy_of_a_tuned_function() {
    let folder = folder();
    let mut entry = foreign(1024, "4f2e", "f16");
    entry.key.policy = Policy { l2: L2::Hot, ..Policy::default() };
    let names = "paged_attention 1024x128 --profile p.ron";
    let args = &format!("explain {names}");
    // Functions that are tuned without a device have the limits of no GPU in particular.
    let any = DeviceIdentity::new(&DeviceLimits::any_device()).on_host();
    put_text(&folder, "p.ron", &document(any, [entry.clone()]).to_string());
    let ran = profile(&folder, args).exits(0);
    let title = "paged_attention f16 1024x128 on the host as generic CUDA device\n";
    assert!(ran.out.starts_with(title), "{}", ran.out);
    assert!(
        ran.out.contains(", hot-eager, ") && ran.out.contains("\nmatch: exact, "),
        "{}",
        ran.out
    );
    let elsewhere = profile(&folder, &format!("{args} --device host")).exits(2);
    let advice =
        "the profile of the host as NVIDIA H200 has entries of no others: name the profile's file";
    elsewhere.notes(advice);

    // Both policies: the choice is the caller's.
    let cold = foreign(1024, "4f2e", "f16");
    put(&folder, "p.ron", [entry, cold]);
    let ran = profile(&folder, args).exits(2);
    assert!(
        ran.err.ends_with(
            "policy cold-eager; dtype \"f16\", variant \"v2\", source \"4f2e\", policy hot-eager\n"
        ),
        "{}",
        ran.err
    );
    profile(&folder, &format!("{args} --policy hot-eager")).exits(0);
}

#[test]
fn several_keys_of_an_unknown_kernel_are_an_error() {
    let folder = folder();
    let entries = [("4f2e", "f16"), ("4f2e", "bf16"), ("aaaa", "f16")];
    put_for_the_gpu(&folder, entries.map(|(source, dtypes)| foreign(1024, source, dtypes)));
    let ran = explain_foreign(&folder, "1024x128", "").exits(2);
    let expected = "error: the profile has 3 keys of paged_attention: choose one with --dtype, \
                    --variant, --source and --policy: dtype \"bf16\", variant \"v2\", source \"4f2e\", policy \
                    cold-eager; dtype \"f16\", variant \"v2\", source \"4f2e\", policy cold-eager; dtype \"f16\", \
                    variant \"v2\", source \"aaaa\", policy cold-eager\n";
    assert_eq!(ran.err, expected);
    explain_foreign(&folder, "1024x128", "--dtype f16").exits(2);
    explain_foreign(&folder, "1024x128", "--dtype bf16").exits(0);
    let named = "--dtype f16 --source aaaa --variant v2";
    explain_foreign(&folder, "1024x128", named).exits(0);
    explain_foreign(&folder, "1024x128", "--source bbbb").exits(1).prints("match: none, ");
    for (shape, message) in [("1024xtwo", "`two` is not a size"), ("''", "`` is not a size")] {
        explain_foreign(&folder, shape, "--dtype bf16").exits(2).notes(message);
    }
    let args = "explain norm 8 --gpu h200 --profile p.ron";
    let ran = profile(&folder, args).exits(2);
    ran.notes("unknown kernel `norm`: the kernels are argsort, ");
    assert!(
        ran.err.ends_with("; the profile also has entries of paged_attention\n"),
        "{}",
        ran.err
    );
    let args = "explain rms_norm 8x8 --gpu h200 --source 4f2e";
    profile(&folder, args).exits(2).notes("rms_norm is a kernel of gridguard");
}
