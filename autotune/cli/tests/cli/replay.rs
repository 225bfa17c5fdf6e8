//! `gridguard run --capture` and `gridguard tune --replay`, with the fake driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use gridguard_test_support::fake_library::{self, COMPILER};
use serde_json::Value;

use crate::command::{Ran, command};
use crate::run::{built, preload};

/// A folder with the fake driver's compiler, which the clock needs.
fn compiler() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay");
        let [library, link, ..] = COMPILER;
        fake_library::build(&folder, "libnvrtc.c", library, link, None);
        folder
    })
}

fn with_driver(folder: &Path, words: &[&str]) -> Command {
    let mut command = command(folder, words);
    let libraries = std::env::join_paths([built(), compiler()]).unwrap();
    command.env("LD_LIBRARY_PATH", libraries).env("GRIDGUARD_PRELOAD", preload());
    // The parameters of the clock's kernel.
    command.env("GRIDGUARD_FAKE_NVRTC_CUBIN", "8,8");
    command
}

/// Runs `gridguard run --capture KERNEL OPTIONS -- captured ACTION...`.
fn capture(folder: &Path, options: &[&str], actions: &[&str]) -> Ran {
    let program = built().join("captured");
    let words =
        [&["run", "--quiet", "--capture"], options, &["--", program.to_str().unwrap()], actions];
    with_driver(folder, &words.concat()).output().unwrap().into()
}

/// Replays within a longer time if the machine is so busy that a block was not checked.
fn replay(folder: &Path, file: &str, settings: &[(&str, &str)]) -> Ran {
    let within = |budget: &str| -> Ran {
        let policy = ["--policy", "hot-eager", "--budget", budget, "--format", "json"];
        let mut command = with_driver(folder, &[&["tune", "--replay", file], &policy[..]].concat());
        command.envs(settings.iter().copied()).output().unwrap().into()
    };
    let is_enough = |ran: &Ran| {
        let is_checked = |row: &&Value| row["verdict"] != "unmeasured";
        ran.code == Some(3) || rows(&ran.json(), Some("block")).iter().all(is_checked)
    };
    let mut runs = ["10s", "40s", "160s", "640s"].into_iter().map(within);
    runs.find(is_enough).expect("each block is checked")
}

/// The rows of the candidates with this parameter, or without any.
fn rows<'a>(result: &'a Value, parameter: Option<&str>) -> Vec<&'a Value> {
    let rows = result["report"]["rows"].as_array().expect("rows");
    let names = |row: &Value| {
        let all = row["candidate"]["parameters"].as_array().expect("parameters");
        all.iter().map(|one| one[0].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let has = |row: &&Value| match parameter {
        Some(name) => names(row).iter().any(|one| one == name),
        None => names(row).is_empty(),
    };
    rows.iter().filter(has).collect()
}

#[test]
fn a_captured_launch_is_replayed_in_other_ways_with_the_same_result() {
    let folder = tempfile::tempdir().unwrap();
    let ran =
        capture(folder.path(), &["gridguard_invert:2"], &["invert", "iota", "invert"]).exits(0);
    assert_eq!(ran.out, "set up 0\ninvert 0\niota 0\ninvert 0\n");
    let file = "gridguard_invert-2.capture.tar";
    assert!(ran.err.ends_with(&format!(
        "tune --replay {}` measures it\n",
        folder.path().join(file).display()
    )));
    let ran = replay(folder.path(), file, &[]);
    assert!([Some(0), Some(1)].contains(&ran.code), "{}\n{}", ran.out, ran.err);
    assert_eq!(
        ran.err.trim_end(),
        "the launch updates its memory in place: all times include restoring that"
    );
    let result = ran.json();
    assert_eq!((&result["kernel"], &result["number"]), (&"gridguard_invert".into(), &2.into()));
    assert_eq!(
        (&result["captured_on"], &result["device"]),
        (&"NVIDIA H200".into(), &"NVIDIA H200 (0)".into())
    );
    let own = rows(&result, None);
    assert_eq!(own[0]["verdict"], "default");
    assert!(own.len() == 3, "whole, folded and shifted: {own:?}");
    for name in ["block", "carveout", "cluster"] {
        let all = rows(&result, Some(name));
        assert!(
            all.len() >= 3 && all.iter().all(|row| row["failure"].is_null()),
            "{name}: {all:?}"
        );
    }
}

#[test]
fn a_block_that_changes_the_result_never_wins() {
    let folder = tempfile::tempdir().unwrap();
    capture(folder.path(), &["iota_x", "--capture-to", "here.tar"], &["iota"]).exits(0);
    // At the addresses of the program, and at others.
    for settings in [&[][..], &[("GRIDGUARD_FAKE_MOVED", "1")]] {
        let result = replay(folder.path(), "here.tar", settings).json();
        let blocks = rows(&result, Some("block"));
        // Its grid decides what it writes.
        assert!(
            !blocks.is_empty() && blocks.iter().all(|row| row["verdict"] == "failed"),
            "{blocks:?}"
        );
        assert!(rows(&result, Some("carveout")).iter().any(|row| row["failure"].is_null()));
        let differs = |row: &&Value| {
            let message = row["failure"]["message"].as_str().unwrap_or_default();
            message.contains("differs from the captured launch")
        };
        assert!(blocks.iter().any(differs), "{blocks:?}");
    }
}

#[test]
fn memory_with_addresses_is_replayed_only_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    capture(folder.path(), &["lookup", "--capture-to", "table.tar"], &["lookup"]).exits(0);
    let ran = replay(folder.path(), "table.tar", &[]);
    assert_eq!(rows(&ran.json(), None)[0]["verdict"], "default", "{}", ran.err);
    let moved = replay(folder.path(), "table.tar", &[("GRIDGUARD_FAKE_MOVED", "1")]).exits(3);
    assert!(moved.err.contains("has 1 addresses of memory, and cannot be placed"), "{}", moved.err);
}

#[test]
fn what_cannot_be_captured_is_said_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.tar"), "mine").unwrap();
    for (to, why) in [
        ("mine.tar", "exists, and a capture replaces nothing"),
        ("no folder/file.tar", "no such folder"),
    ] {
        let ran = capture(folder.path(), &["iota_x", "--capture-to", to], &["iota"]).exits(2);
        assert!(ran.err.contains(why) && ran.out.is_empty(), "{}", ran.err);
    }
    assert_eq!(fs::read(folder.path().join("mine.tar")).unwrap(), b"mine");
    let limited = ["lookup", "--capture-limit", "32MiB"];
    let ran = capture(folder.path(), &limited, &["large"]).exits(0);
    assert!(ran.err.contains("64.00 MiB of memory, the limit is 32.00 MiB"), "{}", ran.err);
}

#[test]
fn files_and_devices_that_cannot_be_replayed_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("other.tar"), "no archive").unwrap();
    capture(folder.path(), &["iota_x", "--capture-to", "whole.tar"], &["iota"]).exits(0);
    let with = |words: &[&str]| -> Ran {
        with_driver(folder.path(), &[&["tune", "--replay"], words].concat())
            .output()
            .unwrap()
            .into()
    };
    for (words, code, why) in [
        (&["missing.tar"][..], 2, "missing.tar: "),
        (&["other.tar"], 2, "other.tar: it is no whole capture of `gridguard run --capture`: "),
        (&["other.tar", "--device", "host"], 2, "on one device: name its ordinal"),
        (&["other.tar", "--policy", "cold-graph"], 2, "use an eager policy"),
        (&["whole.tar", "--device", "7"], 3, "device"),
        (&["other.tar", "--device", "7"], 2, "other.tar: "),
        (&["other.tar", "--profile", "p.ron"], 2, "cannot be used with"),
    ] {
        let ran = with(words).exits(code);
        assert!(ran.err.contains(why), "{words:?}: {}", ran.err);
    }
    // The file is named first, also where there is no device.
    for (file, why) in [("missing.tar", "missing.tar: "), ("other.tar", "it is no whole capture")] {
        let mut command = command(folder.path(), &["tune", "--replay", file]);
        let ran = Ran::from(command.env_remove("LD_LIBRARY_PATH").output().unwrap()).exits(2);
        assert!(ran.err.contains(why), "{}", ran.err);
    }
}
