//! Subcommands that only read and write files: show, merge, prune.

use expect_test::expect_file;
use gridguard::catalog;
use gridguard::profile::{DeviceIdentity, Entry, L2, Policy, Processor, StoredChoice, Submission};
use serde_json::json;

use super::entries::{
    EARLY, LATE, chunks_of, document, folder, host, norm, profile, put, put_text, rows, text,
    with_bad_entry,
};
use crate::command::{parsed, run};

#[test]
fn a_profile_is_shown_with_its_device_and_a_row_for_each_entry() {
    let folder = folder();
    let graph = Policy { l2: L2::Cold, submission: Submission::Graph };
    let mut other = norm(4096, LATE);
    (other.key.policy, other.choice, other.launches) = (graph, chunks_of(2048), 2);
    put(&folder, "p.ron", [norm(300, EARLY), other]);
    let shown = profile(&folder, "show p.ron").exits(0);
    let expected = "\
the host as NVIDIA H200, compute capability 9.0, 132 multiprocessors
memory 150109880320 bytes, L2 cache 62914560 bytes
processor PROCESSOR
measured with tuner 0.1.0
2 entries

kernel    types  shape   measured for  choice          launches    median  vs default  samples  date
rms_norm  f32    300x8   -             whole                  1  2.000 ms     -20.0 %       20  2026-11-01T12:00:00Z
rms_norm  f32    4096x8  cold-graph    chunks of 2048         2  2.000 ms     -20.0 %       20  2026-11-20T12:00:00Z
";
    let processor = Processor::current().to_string();
    assert_eq!(shown.out, expected.replace("PROCESSOR", &processor));
    let other = profile(&folder, "show p.ron --kernel softmax").exits(0);
    assert!(other.out.ends_with("0 of 2 entries\n"), "{}", other.out);
    let json = profile(&folder, "show p.ron --format json").exits(0).json();
    assert_eq!(json["device"]["backend"], "host");
    assert_eq!(json["entries"][0]["shape"], json!([["rows", 300], ["columns", 8]]));
    assert_eq!(json["entries"][1]["choice"], json!({"chunked": {"max_items": 2048}}));
}

#[test]
fn the_built_in_profile_of_a_gpu_is_shown_by_the_gpu_s_name() {
    let folder = folder();
    let shown = profile(&folder, "show h200 --kernel softmax").exits(0);
    assert!(shown.out.starts_with("NVIDIA H200, compute capability 9.0, "), "{}", shown.out);
    profile(&folder, "show a100-80gb")
        .exits(2)
        .notes("a100-80gb: there is no built-in profile of NVIDIA");
    put(&folder, "h200", [norm(300, EARLY)]);
    profile(&folder, "show h200").exits(0).prints("the host as NVIDIA H200");
}

#[test]
fn an_invalid_entry_is_reported_with_its_position_and_the_others_are_shown() {
    let folder = folder();
    put_text(&folder, "p.ron", &with_bad_entry([norm(300, EARLY), norm(500, EARLY)]));
    let shown = profile(&folder, "show p.ron").exits(0);
    assert!(shown.err.starts_with("p.ron:8:"), "{}", shown.err);
    shown.prints("1 entry, 1 invalid skipped");
    let json = profile(&folder, "show p.ron --format json").exits(0).json();
    assert_eq!(
        (&json["faults"][0]["line"], &json["faults"][0]["file"]),
        (&8.into(), &"p.ron".into())
    );
}

#[test]
fn a_file_that_is_not_a_profile_of_this_version_is_a_usage_error() {
    let folder = folder();
    put_text(&folder, "future.ron", "(schema: 3, entries: [])");
    put_text(&folder, "garbage.ron", "hello");
    put(&folder, "good.ron", [norm(300, EARLY)]);
    for (file, message) in [
        ("future.ron", "future.ron: the file has schema 3, which this version does not read"),
        ("garbage.ron", "garbage.ron: the header does not parse: 1:"),
        ("none.ron", "none.ron: no such file"),
    ] {
        for args in [
            format!("show {file}"),
            format!("merge good.ron {file} --output new.ron"),
            format!("prune {file}"),
        ] {
            let ran = profile(&folder, &args).exits(2);
            assert!(ran.err.contains(message) && ran.out.is_empty(), "{args:?}: {}", ran.err);
        }
    }
    assert!(!folder.path().join("new.ron").exists());
    profile(&folder, "merge good.ron --output future.ron").exits(2).notes("schema 3");
    assert_eq!(text(&folder, "future.ron"), "(schema: 3, entries: [])");
}

#[test]
fn a_merge_does_not_depend_on_order_or_repetition() {
    let folder = folder();
    let mut slower = norm(300, LATE);
    (slower.choice, slower.chosen.median_ns) = (chunks_of(100), 2_200_000);
    put(&folder, "a.ron", [norm(300, EARLY), norm(500, EARLY)]);
    put(&folder, "b.ron", [slower, norm(700, EARLY)]);
    put(&folder, "c.ron", [norm(900, LATE)]);
    let merge = |files: &[&str], output: &str| {
        profile(&folder, &format!("merge {} --output {output}", files.join(" "))).exits(0)
    };
    let first = merge(&["a.ron", "b.ron", "c.ron"], "abc.ron");
    assert_eq!(first.out, "4 entries from 3 files, 1 conflict\nprofile abc.ron\n");
    expect_file!["../screens/profile-merge.txt"].assert_eq(&first.err);
    merge(&["c.ron", "b.ron", "a.ron"], "cba.ron");
    assert_eq!(text(&folder, "abc.ron"), text(&folder, "cba.ron"));
    assert_eq!(rows(&parsed(&folder.path().join("abc.ron"))), [300, 500, 700, 900]);
    // Onto its own result, and with it as input.
    merge(&["a.ron", "b.ron", "c.ron"], "abc.ron");
    let again = merge(&["abc.ron", "a.ron", "abc.ron"], "abc.ron");
    assert!(again.out.starts_with("4 entries from 2 files, "), "{}", again.out);
    assert_eq!(text(&folder, "abc.ron"), text(&folder, "cba.ron"));
}

#[test]
fn a_merge_as_json_has_its_conflicts() {
    let folder = folder();
    let folded = Entry { choice: StoredChoice::Folded, ..norm(300, LATE) };
    put(&folder, "a.ron", [norm(300, EARLY), norm(500, EARLY)]);
    put(&folder, "b.ron", [folded, norm(500, LATE)]);
    let json = profile(&folder, "merge a.ron b.ron --output c.ron --format json").exits(0).json();
    assert_eq!([&json["entries"], &json["files"], &json["repeated"]], [2, 2, 1]);
    let conflicts = json["conflicts"].as_array().expect("a list");
    assert!(conflicts.len() == 1 && conflicts[0].as_str().is_some_and(|it| it.contains("folded")));
}

#[test]
fn a_merge_drops_entries_of_its_output_only_with_force() {
    let folder = folder();
    put(&folder, "a.ron", [norm(300, EARLY)]);
    put(&folder, "there.ron", [norm(300, EARLY), norm(500, EARLY)]);
    let before = text(&folder, "there.ron");
    let ran = profile(&folder, "merge a.ron --output there.ron").exits(2);
    assert_eq!(
        ran.err,
        "error: the merge would drop 1 entry of there.ron: add it to the files to keep them, or use \
         --force to drop them\n"
    );
    assert_eq!(text(&folder, "there.ron"), before);
    profile(&folder, "merge a.ron there.ron --output there.ron").exits(0);
    assert_eq!(text(&folder, "there.ron"), before);
    profile(&folder, "merge a.ron --output there.ron --force").exits(0);
    assert_eq!(text(&folder, "there.ron"), text(&folder, "a.ron"));
}

#[test]
fn profiles_of_other_devices_do_not_merge() {
    let folder = folder();
    put(&folder, "a.ron", [norm(300, EARLY)]);
    let a100 = DeviceIdentity::new(&catalog::gpu("a100-80gb").expect("known").limits).on_host();
    put_text(&folder, "b.ron", &document(a100, [norm(300, EARLY)]).to_string());
    let ran = profile(&folder, "merge a.ron b.ron --output c.ron").exits(2);
    assert!(ran.err.starts_with("error: b.ron: the profiles cannot be merged: "), "{}", ran.err);
    assert!(ran.err.contains("NVIDIA H200") && !folder.path().join("c.ron").exists());
    let before = text(&folder, "b.ron");
    profile(&folder, "merge a.ron --output b.ron --force").exits(2);
    assert_eq!(text(&folder, "b.ron"), before);
}

#[test]
fn profiles_of_two_processors_neither_merge_nor_replace_each_other() {
    let folder = folder();
    put(&folder, "a.ron", [norm(300, EARLY)]);
    let processor = Some(Processor { name: "Z80".into(), threads: 1 });
    let other = DeviceIdentity { processor, ..host() };
    put_text(&folder, "b.ron", &document(other, [norm(300, EARLY)]).to_string());
    profile(&folder, "merge a.ron b.ron --output c.ron")
        .exits(2)
        .notes("Z80 with 1 thread on this device");
    let tune = "tune --device host --kernel rms_norm --shape 300x8";
    run(folder.path(), &format!("{tune} --profile b.ron"))
        .exits(2)
        .notes("b.ron: the processor is Z80 with 1 thread");
}

#[test]
fn a_merge_skips_invalid_entries_and_reports_them() {
    let folder = folder();
    put(&folder, "a.ron", [norm(300, EARLY)]);
    put_text(&folder, "b.ron", &with_bad_entry([norm(500, EARLY), norm(700, EARLY)]));
    let ran = profile(&folder, "merge a.ron b.ron --output c.ron").exits(2);
    assert!(ran.err.starts_with("b.ron:8:"), "{}", ran.err);
    assert!(ran.out.starts_with("2 entries from 2 files, 0 conflicts, 1 invalid skipped\n"));
    assert_eq!(rows(&parsed(&folder.path().join("c.ron"))), [300, 700]);
}

#[test]
fn prune_removes_stale_entries() {
    let folder = folder();
    let mut edited = norm(500, LATE);
    edited.key.source = "0123456789abcdef".into();
    let mut gone = norm(700, LATE);
    gone.key.kernel = "frobnicate".into();
    put(&folder, "p.ron", [norm(300, EARLY), norm(900, LATE), edited, gone]);
    let before = text(&folder, "p.ron");

    let dry = profile(&folder, "prune p.ron --dry-run").exits(0);
    assert!(dry.out.ends_with("3 unchanged, 1 removed, if run without --dry-run\n"), "{}", dry.out);
    dry.prints("the kernel's source has changed");
    assert_eq!(text(&folder, "p.ron"), before);

    // One that is not gridguard's is only removed by its name.
    profile(&folder, "prune p.ron --kernel frobnicate").exits(0).prints("no kernel of gridguard");
    assert_eq!(rows(&parsed(&folder.path().join("p.ron"))), [500, 300, 900]);
    let pruned = profile(&folder, "prune p.ron --format json").exits(0).json();
    assert_eq!(
        (&pruned["unchanged"], &pruned["removed"][0]["source"]),
        (&2.into(), &"0123456789abcdef".into())
    );
    assert_eq!(rows(&parsed(&folder.path().join("p.ron"))), [300, 900]);
}

#[test]
fn prune_shortens_entries_that_do_not_beat_the_default_and_lookups_say_so() {
    let folder = folder();
    let mut equal = norm(500, LATE);
    equal.chosen = equal.default;
    put(&folder, "p.ron", [norm(300, EARLY), equal]);
    let prune = "prune p.ron --defaults";
    let pruned = profile(&folder, prune).exits(0);
    let said = "the default is as fast, and stays confirmed\n1 unchanged, 1 shortened\n";
    assert!(pruned.out.ends_with(said), "{}", pruned.out);
    let again = profile(&folder, prune).exits(0);
    assert_eq!(again.out, "2 unchanged\n");
    assert_eq!(text(&folder, "p.ron").matches("confirmed: \"2026-").count(), 1);
    let shown = profile(&folder, "show p.ron").exits(0);
    let row = "500x8  confirmed         -         -           -        0  2026-11-20T12:00:00Z\n";
    assert!(shown.out.ends_with(row), "{}", shown.out);
    // The measured entry is kept in a merge with its confirmation.
    put(&folder, "whole.ron", [norm(500, LATE)]);
    for files in ["p.ron whole.ron", "whole.ron p.ron"] {
        profile(&folder, &format!("merge {files} --output all.ron")).exits(0);
        let merged = parsed(&folder.path().join("all.ron"));
        assert!(merged.entries().iter().all(|entry| !entry.is_confirmed()), "{files:?}");
    }
    let words = "explain rms_norm 500x8 --dtype f32 --device host --profile";
    let explained = profile(&folder, &format!("{words} p.ron")).exits(0);
    let said = "match: default, it is confirmed on this device (exact)\nplan: whole, 1 launch";
    explained.prints(said);
}
