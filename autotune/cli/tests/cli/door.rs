//! What somebody sees first: the help, pages of rules, words for GPUs, and the report of a bug.

use std::fs;
use std::path::Path;

use gridguard::Rule;
use gridguard_report::WatchReport;
use serde_json::Value;

use crate::command::{Ran, Words, command, run};

fn here(args: &(impl Words + ?Sized)) -> Ran {
    run(Path::new("."), args)
}

#[test]
fn the_command_alone_says_what_to_do_first() {
    let ran = here("").exits(0);
    assert!(ran.out.contains("\n  gridguard explain CUDA error"), "{}", ran.out);
    assert_eq!(ran.out, here("-h").out);
}

#[test]
fn the_page_of_each_rule_is_printed_and_a_misspelt_one_is_suggested() {
    for rule in Rule::ALL {
        let page = here(&["explain", rule.id()]).exits(0);
        assert!(page.out.starts_with(&format!("{rule}\n")), "{}", page.out);
    }
    let bracketed = here("explain [grid-dim-y] --format json").exits(0).json();
    assert_eq!(bracketed["rule"], "grid-dim-y");
    let wrong = here("explain grid-dim-yy").exits(2);
    assert_eq!(wrong.err, "error: no rule \"grid-dim-yy\"; did you mean grid-dim-y?\n");
}

#[test]
fn every_argument_takes_the_same_words_for_a_gpu() {
    let named = |word: &str| here(&["limits", word]).exits(0).out;
    assert!(named("h200").contains("NVIDIA H200"));
    let blackwell = named("sm_120");
    assert!(blackwell.contains("any sm_120") && blackwell.contains("[1] "), "{blackwell}");
    assert_eq!(named("12.0"), blackwell);
    assert_eq!(here("limits --gpu compute_120").exits(0).out, blackwell);
    assert!(named("any").contains("generic CUDA device"));
    assert!(!here("limits --help").exits(0).out.contains("rtx-5090"), "help lists no GPUs");
    let both = here("limits --compare 9.0 rtx-4090").exits(0).out;
    assert!(both.contains("any sm_90") && both.contains("RTX 4090"), "{both}");
    let launch = "--grid 1,70000 --block 1 --gpu";
    for args in [
        &format!("check {launch}")[..],
        "explain 700 --gpu",
        "profile explain rms_norm 64x64 --gpu",
        "profile explain rms_norm 64x64 --device host --gpu",
    ] {
        for word in ["9.0", "sm_120", "sm_90a", "compute_90", "any", "rtx-4090"] {
            let ran = here(&format!("{args} {word}"));
            assert!(matches!(ran.code, Some(0 | 1)), "{args:?} {word}: {}", ran.err);
        }
        for (word, instead) in
            [("sm_90zz", "such as 8.6"), ("rtx-2080-mobile", ": use 7.5, its"), ("9.7", " 9.0, ")]
        {
            here(&format!("{args} {word}"))
                .exits(2)
                .notes(instead)
                .notes("`gridguard limits` lists");
        }
    }
    here("limits rtx-6000")
        .exits(2)
        .notes("it is 2 GPUs, name one: quadro-rtx-6000 (7.5), rtx-6000-ada");
}

#[test]
fn a_bug_report_has_versions_and_a_report_but_no_personal_details() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("notes.json"), "{}").expect("written");
    let program = "/home/ada.lovelace/secret project/train".to_owned();
    let report = serde_json::to_string(&WatchReport::pending(program, 7)).expect("JSON");
    fs::write(folder.path().join("report.json"), report).expect("written");
    let made = |args: &str| -> Ran {
        let mut command = command(folder.path(), args);
        command.env("HOME", "/home/ada.lovelace").env("USER", "ada.lovelace");
        command.env("LD_LIBRARY_PATH", "/home/ada.lovelace/lib:/data/acme/lib");
        command.output().expect("the command runs").into()
    };
    let ran = made("bug-report --report report.json --format json").exits(0);
    let document: Value = ran.json();
    let version = document["gridguard"].as_str().expect("a version");
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
    assert_eq!(document["environment"]["LD_LIBRARY_PATH"], ".../lib:.../lib");
    assert_eq!(document["report"]["process"], 7);
    assert!(document["doctor"]["findings"].as_array().is_some_and(|all| !all.is_empty()));
    let doctor = made("doctor --format json").json();
    let counts = ["good", "warnings", "unknown", "bad"];
    assert_eq!(counts.map(|count| &document["doctor"][count]), counts.map(|count| &doctor[count]));
    let text = made("bug-report --report report.json").exits(0).out;
    assert!(text.starts_with("```json\n{\n") && text.ends_with("}\n```\n"), "{text}");
    for secret in ["ada", "lovelace", "acme", "secret"] {
        assert!(!ran.out.contains(secret) && !text.contains(secret), "{secret}: {text}");
    }
    made("bug-report --report notes.json").exits(2);
    made("bug-report --report missing.json").exits(2);
}
