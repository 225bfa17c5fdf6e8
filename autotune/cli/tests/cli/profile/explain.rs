//! `gridguard profile explain`: which entry matches, and why others do not.

use std::fs;

use gridguard::profile::{Backend, DeviceIdentity, Entry, Processor};
use serde_json::Value;
use tempfile::TempDir;

use super::entries::{LATE, chunks_of, document, folder, host, norm, profile, put, put_text};
use crate::command::{Ran, command};

fn explain(folder: &TempDir, shape: &str, code: i32) -> Value {
    let args = ["explain", "rms_norm", shape, "--dtype", "f32", "--device", "host"];
    let args = [&args[..], &["--profile", "p.ron", "--format", "json"]].concat();
    profile(folder, &args).exits(code).json()
}

#[test]
fn a_lookup_reports_how_it_matches_and_what_it_passed_over() {
    let folder = folder();
    let chunked = Entry { choice: chunks_of(32_768), launches: 3, ..norm(70_000, LATE) };
    let mut other_type = norm(70_000, LATE);
    other_type.key.dtypes = "f16".into();
    put(&folder, "p.ron", [chunked, norm(300_000, LATE), other_type]);

    let exact = explain(&folder, "70000x8", 0);
    assert_eq!((&exact["matched"], &exact["layer"]), (&"exact".into(), &"explicit".into()));
    assert_eq!(exact["file"], "p.ron");
    assert_eq!(
        (&exact["plan"]["strategy"], &exact["plan"]["launches"]),
        (&"chunked".into(), &3.into())
    );
    let considered = exact["considered"].as_array().expect("a list");
    assert_eq!(considered.len(), 2);
    assert_eq!(considered[0]["reason"], "rows is 2.100 octaves away, more than one");
    assert_eq!(considered[1]["reason"], "it is for f16");

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
fn a_lookup_as_text_shows_the_entry_the_plan_and_other_entries() {
    let folder = folder();
    let chunked = Entry { choice: chunks_of(32_768), launches: 3, ..norm(70_000, LATE) };
    let mut stale = document(host(), [chunked, norm(100_000, LATE)]);
    stale.retain(|entry| entry.found.date == LATE);
    let text = stale.to_ron().replace("tuner: \"0.1.0\"", "tuner: \"0.0.9\"");
    put_text(&folder, "p.ron", &text);
    let args = ["explain", "rms_norm", "71000x8", "--dtype", "f32", "--device", "host"];
    let ran = profile(&folder, &[&args[..], &["--profile", "p.ron"]].concat()).exits(0);
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
note: explicit profile p.ron: 2 entries were measured with tuner 0.0.9, this is 0.1.0: they are still used

other entries
shape     types  layer     choice  octaves away                       why not
100000x8  f32    explicit  whole   0.494 (rows 0.494, columns 0.000)  farther than the match: 0.494 octaves
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
    put_text(&folder, "nvidia-h200.ron", &document(cuda, [norm(500, LATE)]).to_ron());
    let ask = |shape: &str, whose: [&str; 2]| -> Value {
        let args = ["profile", "explain", "rms_norm", shape, "--dtype", "f32", "--format", "json"];
        let args = [&args[..], &whose].concat();
        let mut asked = command(folder.path(), &args);
        let ran: Ran = asked.env("GRIDGUARD_PROFILES", ".").output().expect("runs").into();
        ran.exits(0).json()
    };
    let host = ask("70000x8", ["--device", "host"]);
    assert_eq!((&host["layer"], &host["file"]), (&"user".into(), &format!("./{own}").into()));
    let gpu = ask("500x8", ["--gpu", "h200"]);
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
    assert_eq!(json["considered"][0]["reason"], "the kernel's source has changed");
    fs::remove_file(folder.path().join("p.ron")).expect("removed");
    let json = explain(&folder, "70000x8", 1);
    assert_eq!(json["reason"], "the kernel was not tuned: tune it");
    assert_eq!(
        json["findings"][0],
        "reject: explicit profile p.ron: there is no such file: give another path, or tune"
    );
    profile(&folder, &["explain", "norm", "2x2", "--gpu", "h200"]).exits(2);
    profile(&folder, &["explain", "rms_norm", "2x2", "--gpu", "voodoo"]).exits(2);
}

#[test]
fn entries_of_another_or_an_unnamed_processor_are_not_used() {
    let folder = folder();
    let name = "Z80".to_owned();
    for (processor, whose) in [
        (Some(Processor { name, threads: 1 }), "Z80 with 1 thread"),
        (None, "an unnamed processor"),
    ] {
        let other = DeviceIdentity { processor, ..host() };
        put_text(&folder, "p.ron", &document(other, [norm(70_000, LATE)]).to_ron());
        let json = explain(&folder, "70000x8", 1);
        assert_eq!(json["matched"], "default");
        let finding = json["findings"][0].as_str().expect("a finding");
        let expected =
            format!("reject: explicit profile p.ron: the profile is for {whose}, this is ");
        assert!(finding.starts_with(&expected), "{finding}");
        // Its owner can still read it.
        let shown = profile(&folder, &["show", "p.ron"]).exits(0).out;
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
