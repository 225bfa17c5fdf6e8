//! The files that `gridguard run --report` and `--record` write, and those that they leave alone.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::{Ran, gridguard, mkfifo, run};
use crate::run::{built, preload};

const OPTIONS: [&str; 2] = ["--report", "--record"];

/// Runs `gridguard run OPTIONS -- launches dlsym ACTION...`.
fn run_launches(folder: &Path, options: &[&str], actions: &[&str]) -> Ran {
    let mut command = limited(folder, gridguard().to_str().unwrap());
    command.arg("run").args(options).arg("--").arg(built().join("launches")).arg("dlsym");
    command.args(actions).output().unwrap().into()
}

/// A command with the fake driver that is ended if it hangs, with the exit code 124.
fn limited(folder: &Path, program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["600", program]).current_dir(folder).stdin(Stdio::null());
    command.env("LD_LIBRARY_PATH", built()).env("GRIDGUARD_PRELOAD", preload());
    command.env("GRIDGUARD", gridguard()).env("LAUNCHES", built().join("launches"));
    command
}

/// Runs a bash script. `$GRIDGUARD` and `$LAUNCHES` name the programs.
fn script(folder: &Path, text: &str) -> Ran {
    limited(folder, "bash").args(["-c", text]).output().unwrap().into()
}

fn document(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn other_files_are_not_replaced_and_the_program_does_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("source.rs"), "fn main() {}\n").unwrap();
    fs::write(path("package.json"), r#"{"format": 1, "name": "a package"}"#).unwrap();
    fs::copy("/bin/true", path("program")).unwrap();
    symlink("source.rs", path("link")).unwrap();
    let files = ["source.rs", "package.json", "program", "link"];
    let before = files.map(|name| fs::read(path(name)).unwrap());
    for option in OPTIONS {
        for name in files {
            let ran = run(folder.path(), &["run", option, name, "--", "./program"]).exits(2);
            let kind = option.trim_start_matches("--");
            let why = format!("is no {kind} of `gridguard run`, and is not replaced");
            ran.notes(&why);
            let ran = run(folder.path(), &["run", option, name, "--", "echo", "ran"]).exits(2);
            assert_eq!(ran.out, "", "{name}");
        }
    }
    assert_eq!(files.map(|name| fs::read(path(name)).unwrap()), before);
    assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
}

#[test]
fn an_unwritable_file_is_an_error_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("folder")).unwrap();
    let _listener = UnixListener::bind(path("socket")).unwrap();
    run_launches(folder.path(), &["--report", "protected"], &["good"]).exits(0);
    fs::set_permissions(path("protected"), fs::Permissions::from_mode(0o444)).unwrap();
    symlink("loop", path("loop")).unwrap();
    for option in OPTIONS {
        for (name, why) in [
            ("folder", "is a folder"),
            ("socket", "is a socket"),
            ("loop", "symbolic links"),
            ("none/r.json", "No such file"),
            ("protected/r.json", "Not a directory"),
            ("/dev/fd/999", "No such file"),
        ] {
            let ran = run(folder.path(), &["run", option, name, "--", "echo", "ran"]);
            assert!([Some(2), Some(3)].contains(&ran.code), "{name}: {:?} {}", ran.code, ran.err);
            assert_eq!(ran.out, "", "{name}");
            ran.notes(&format!("cannot write {name}")).notes(why);
        }
    }
    let ran = run(folder.path(), "run --report protected -- echo ran").exits(3);
    assert_eq!(ran.out, "");
    ran.notes("cannot write protected: it is read-only (mode 0444)");
    assert_eq!(document(&path("protected"))["launches"], 1);
    let ran = run(folder.path(), "run --report x --record x -- echo ran");
    assert!(ran.exits(2).err.contains("report and record are one file"));
    assert_eq!(names(folder.path()), ["folder", "loop", "protected", "socket"]);
}

#[test]
fn a_run_without_launches_writes_a_report_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json");
    run_launches(folder.path(), &["--report", "r.json", "--record", "requests"], &["good"])
        .exits(0);
    assert_eq!(document(&path)["launches"], 1);
    // The shell ends without what programs do at their end.
    for (program, said, shown) in [
        (
            "true",
            " was watched, and made no CUDA call\n",
            "0 launches of 0 kernels accepted, 0 refused",
        ),
        ("sh", "", "watched, and no process of the run has reported a launch"),
    ] {
        let words = ["run", "--report", "r.json", "--record", "requests", "--", program, "-c", ":"];
        assert!(run(folder.path(), &words).exits(0).err.ends_with(said));
        let report = document(&path);
        assert_eq!((&report["launches"], &report["watched"]), (&0.into(), &true.into()));
        run(folder.path(), "report r.json").exits(0).prints(shown);
        assert_eq!(fs::read(folder.path().join("requests")).unwrap(), b"");
    }
    // An empty file is what `mktemp` makes.
    fs::write(&path, "").unwrap();
    run_launches(folder.path(), &["--report", "r.json", "--record", "requests"], &["good"])
        .exits(0);
    assert_eq!(document(&path)["launches"], 1);
    assert_eq!(names(folder.path()), ["r.json", "requests"]);
}

#[test]
fn the_first_process_that_launches_writes_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json");
    for _ in 0..2 {
        script(
            folder.path(),
            r#"$GRIDGUARD run --report r.json -- sh -c '$LAUNCHES dlsym good; :'"#,
        )
        .exits(0);
        assert_eq!(document(&path)["launches"], 1);
    }
    let both = r#"$GRIDGUARD run --report r.json -- sh -c '$LAUNCHES dlsym good; $LAUNCHES dlsym good good'"#;
    script(folder.path(), both).exits(0);
    assert_eq!(document(&path)["launches"], 1);
    let [numbered, _] = &*names(folder.path()) else { panic!("{:?}", names(folder.path())) };
    let numbered = document(&folder.path().join(numbered));
    assert_eq!(numbered["launches"], 2);
}

#[test]
fn a_link_to_a_report_stays_and_its_report_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("elsewhere")).unwrap();
    symlink("elsewhere/r.json", path("link")).unwrap();
    symlink("elsewhere/requests", path("requests")).unwrap();
    // At first the links lead to nothing.
    for actions in [&["good"][..], &["good", "good"]] {
        run_launches(folder.path(), &["--report", "link", "--record", "requests"], actions)
            .exits(0);
        assert_eq!(document(&path("elsewhere/r.json"))["launches"], actions.len());
        assert_eq!(fs::read_to_string(path("elsewhere/requests")).unwrap().lines().count(), 1);
    }
    fs::set_permissions(path("elsewhere/r.json"), fs::Permissions::from_mode(0o640)).unwrap();
    run_launches(folder.path(), &["--report", "link"], &["good"]).exits(0);
    assert_eq!(fs::metadata(path("elsewhere/r.json")).unwrap().mode() & 0o777, 0o640);
    assert!(["link", "requests"].iter().all(|name| path(name).is_symlink()));
    assert_eq!(names(folder.path()), ["elsewhere", "link", "requests"]);
}

#[test]
fn a_pipe_without_a_reader_does_not_block_the_program() {
    let folder = tempfile::tempdir().unwrap();
    mkfifo(&folder.path().join("pipe"));
    let ran = run_launches(folder.path(), &["--report", "pipe", "--record", "pipe"], &["good"]);
    ran.exits(2).notes("report and record are one file");
    run_launches(folder.path(), &["--report", "pipe"], &["good"])
        .exits(0)
        .notes("pipe: nobody reads the pipe");
    run_launches(folder.path(), &["--record", "pipe"], &["good", "ex"])
        .exits(0)
        .notes("2 kinds of launches could not be recorded");
    assert!(fs::symlink_metadata(folder.path().join("pipe")).unwrap().file_type().is_fifo());
}

#[test]
fn a_reader_of_a_pipe_gets_all_of_a_report_or_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    mkfifo(&path("pipe"));
    for (option, program, lines) in [
        ("--report", "$LAUNCHES dlsym good", None),
        ("--report", "true", None),
        ("--record", "$LAUNCHES dlsym good ex good", Some(2)),
    ] {
        for output in ["pipe", ">(cat > read)"] {
            let mut pipe = reader(&path("pipe"));
            let text = format!("$GRIDGUARD run --quiet {option} {output} -- {program}; wait $!");
            script(folder.path(), &text);
            let mut read = String::new();
            match output {
                "pipe" => pipe.read_to_string(&mut read).unwrap(),
                _ => File::open(path("read")).unwrap().read_to_string(&mut read).unwrap(),
            };
            if let Some(lines) = lines {
                assert_eq!(read.lines().count(), lines, "{text}: {read}");
            } else {
                let launches = u64::from(program != "true");
                let report: Value = serde_json::from_str(&read).unwrap();
                assert_eq!(report["launches"], launches, "{text}");
            }
        }
    }
}

#[test]
fn a_reader_that_takes_nothing_does_not_block_the_program() {
    let folder = tempfile::tempdir().unwrap();
    mkfifo(&folder.path().join("pipe"));
    let _reader = reader(&folder.path().join("pipe"));
    let ran = run_launches(folder.path(), &["--report", "pipe"], &["names=2000"]).exits(0);
    assert!(ran.err.contains("cannot write ") && ran.err.contains("its reader takes nothing"));
}

/// The end of a pipe that is read, without waiting for one that writes.
fn reader(pipe: &Path) -> File {
    const NONBLOCK: i32 = 0o4000;
    File::options().read(true).custom_flags(NONBLOCK).open(pipe).unwrap()
}

#[test]
fn a_report_goes_to_standard_output_and_to_devices_which_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Links: were a device deleted, it would be gone for the whole machine.
    for device in ["stdout", "null", "full"] {
        symlink(Path::new("/dev").join(device), path(device)).unwrap();
    }
    for name in ["stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        // Later output of the program must not overwrite the report in the file.
        let text = format!(
            "$GRIDGUARD run --quiet --report {name} -- bash -c '$LAUNCHES dlsym good; echo after' > out"
        );
        script(folder.path(), &text).exits(0);
        let out = fs::read_to_string(path("out")).unwrap();
        let start = out.find('{').unwrap_or_else(|| panic!("{name}: {out}"));
        let mut reports = serde_json::Deserializer::from_str(&out[start..]).into_iter::<Value>();
        assert_eq!(reports.next().unwrap().unwrap()["launches"], 1, "{name}: {out}");
        assert!(out.contains("set up 0 0 0 0 0\ngood 0\n") && out.contains("after\n"), "{out}");
    }
    for option in OPTIONS {
        let ran = run_launches(folder.path(), &[option, "null"], &["good"]).exits(0);
        assert!(!ran.err.contains("cannot"), "{}", ran.err);
        run(folder.path(), &["run", option, "null", "--", "true"]).exits(0);
    }
    run_launches(folder.path(), &["--report", "full"], &["good"])
        .exits(0)
        .notes("cannot write /dev/full: No space left on device");
    run_launches(folder.path(), &["--record", "full"], &["good"])
        .exits(0)
        .notes("1 kind of launches could not be recorded");
    for device in ["null", "full"] {
        assert!(fs::metadata(path(device)).unwrap().file_type().is_char_device());
    }
    assert_eq!(names(folder.path()), ["full", "null", "out", "stdout"]);
}

#[test]
fn a_report_is_readable_however_the_program_ends() {
    let folder = tempfile::tempdir().unwrap();
    let with_report = |name: &str, program: &str, code: i32| {
        let text = format!("$GRIDGUARD run --quiet --report {name} -- sh -c '{program}'; exit $?");
        script(folder.path(), &text).exits(code);
        document(&folder.path().join(name))
    };
    let killed = with_report("killed.json", "$LAUNCHES dlsym good good; kill -9 $$", 137);
    assert_eq!(killed["launches"], 2);
    assert_eq!(with_report("early.json", "kill -9 $$", 137)["pending"], true);
    run(folder.path(), "report early.json").exits(0).prints("or it ended before it could report");
    let closed = "cd /; exec env -u HOME $LAUNCHES dlsym good 0<&- >&- 2>&-";
    assert_eq!(with_report("closed.json", closed, 0)["launches"], 1);
    let many = "for i in $(seq 50); do $LAUNCHES dlsym good & done; wait";
    with_report("many.json", many, 0);
    let all = names(folder.path()).into_iter().filter(|name| name.starts_with("many."));
    let all: Vec<_> =
        all.map(|name| document(&folder.path().join(name))["launches"].clone()).collect();
    assert_eq!(all, vec![1; 50]);
}

#[test]
fn a_huge_file_is_no_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge");
    File::create(&path).and_then(|file| file.set_len(1 << 40)).unwrap();
    let why = "more than 64.00 MiB, the most that a report has";
    run(folder.path(), "report huge").exits(2).notes(&format!("huge: {why}"));
    run(folder.path(), "run --report huge -- true")
        .exits(2)
        .notes("is no report of `gridguard run`");
    script(folder.path(), "$GRIDGUARD report <(yes) 2>&1").exits(2).prints(why);
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 40);
    // A report in a pipe is read.
    run_launches(folder.path(), &["--report", "r.json"], &["good"]).exits(0);
    script(folder.path(), "$GRIDGUARD report <(cat r.json)")
        .exits(0)
        .prints("1 launch of 1 kernel accepted");
}
