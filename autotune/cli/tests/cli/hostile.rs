//! Hostile use: contradictory arguments, closed outputs, no home folder, signals.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::command::{Ran, Words, command, gridguard, parsed, run, signal, start, wait_until};
use gridguard_files::FileLock;
use tempfile::TempDir;

const REJECTED: &str = "check --gpu h200 --grid 1,65536 --block 1";
/// With one candidate nothing is undecided, however busy the machine is.
const TUNE: &str =
    "tune --device host --policy hot-eager --from h200 --kernel rms_norm --shape 300x8";

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn tune(more: &str) -> String {
    format!("{TUNE} {more}")
}

/// A pipe whose reader is closed.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

/// A disk that is full.
fn full() -> Stdio {
    let full: File = OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    full.into()
}

#[test]
fn contradictions_and_impossible_values_are_usage_errors_before_any_work() {
    let folder = folder();
    let cases: Vec<(&str, &str)> = vec![
        ("''", "unrecognized subcommand"),
        ("limits --gpu ''", "no GPU \"\""),
        ("limits --gpu h200 --gpu t4", "multiple times"),
        ("check --gpu h200 --requests - --cooperative", "--cooperative"),
        ("check --gpu h200 --requests - --shared-mem 1", "--shared-mem"),
        ("tune --device 0 --gpu h200", "--gpu names the limits that the host"),
        (
            "profile explain rms_norm 8x8 --device 0 --gpu t4",
            "--gpu names the limits that the host",
        ),
        ("tune --kernel rms_norm --dtype f32", "--shape"),
        ("tune --shapes any.ron --kernel norm", "unknown kernel `norm`"),
        ("tune --objective latency:584542046090y", "a latency limit is 1 to"),
        ("tune --budget ''", "expected numbers with their units, such as 60s"),
        ("tune --memory lots", "expected a number of bytes, such as 4096"),
        ("run --batch 0 -- true", "expected a whole number, such as 6, of at least 1"),
        ("run --batch x -- true", "expected a whole number, such as 6"),
        ("profile show ''", "a value is required"),
        ("profile merge p.ron --output - --format json", "omit --format json"),
        #[cfg(not(feature = "fleet"))]
        ("profile pull oci://a/b:c --keys k", "add `--features fleet` to"),
    ];
    for (args, message) in cases {
        let ran = run(folder.path(), args).exits(2);
        assert!(ran.err.contains(message) && ran.out.is_empty(), "{args:?}: {}", ran.err);
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn a_closed_pipe_does_not_change_the_exit_code() {
    let folder = folder();
    let code = |args: &str| {
        let status = command(folder.path(), args).stdout(closed_pipe()).status();
        status.expect("the command runs").code()
    };
    assert_eq!(code(REJECTED), Some(1));
    assert_eq!(code(&format!("{REJECTED} --format json")), Some(1));
    assert_eq!(code("limits --gpu h200"), Some(0));
    assert_eq!(code(&tune("--profile p.ron")), Some(0));
    assert_eq!(parsed(&folder.path().join("p.ron")).entries().len(), 1);
    assert_eq!(code("profile show p.ron"), Some(0));
    let line = r#"{"grid":[1,65536,1],"block":[1,1,1]}"#;
    fs::write(folder.path().join("requests"), format!("{line}\n").repeat(1000)).expect("written");
    assert_eq!(code("check --gpu h200 --requests requests"), Some(1));
}

#[test]
fn a_result_that_cannot_be_written_is_exit_3() {
    let folder = folder();
    run(folder.path(), &tune("--profile p.ron")).exits(0);
    for args in [
        REJECTED,
        "limits --gpu h200",
        "profile show p.ron",
        &tune("--profile p.ron --format json"),
    ] {
        let output = command(folder.path(), args).stdout(full()).output().expect("runs");
        Ran::from(output).exits(3).notes("No space left on device");
    }
}

#[test]
fn diagnostics_that_cannot_be_written_neither_panic_nor_change_the_exit_code() {
    let folder = folder();
    for (args, code) in [
        ("profile show none.ron", 2),
        ("check --gpu h200 --requests none", 2),
        ("profile explain rms_norm 8x8 --device 4711", 3),
        ("tune --kernel norm", 2),
    ] {
        for stderr in [full(), closed_pipe()] {
            let output = command(folder.path(), args).stderr(stderr).output().expect("runs");
            assert_eq!(output.status.code(), Some(code), "{args:?}");
        }
    }
}

#[test]
fn an_output_file_that_cannot_be_written_is_reported_before_anything_is_measured() {
    let folder = folder();
    let path = folder.path().to_str().expect("a name");
    fs::write(folder.path().join("file"), "").expect("written");
    for plot in ["file/curve.svg", path] {
        let ran = run(folder.path(), &tune(&format!("--profile p.ron --plot {plot}"))).exits(3);
        assert!(ran.err.contains(plot) && ran.out.is_empty(), "{}", ran.err);
    }
    assert!(!folder.path().join("p.ron").exists());
    // If only the final write fails, the choice is kept.
    run(folder.path(), &tune("--profile p.ron --plot /dev/full")).exits(3).prints("1 tuned");
    assert_eq!(parsed(&folder.path().join("p.ron")).entries().len(), 1);
}

#[test]
fn a_plot_that_cannot_be_written_whole_leaves_the_old_one() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = folder();
    let plot = folder.path().join("curve.svg");
    fs::write(&plot, "old").expect("written");
    fs::set_permissions(&plot, fs::Permissions::from_mode(0o640)).expect("its mode");
    let args = tune("--profile p.ron --plot curve.svg");
    // A plot is larger than 2 KiB, a profile of one entry is not. The signal has its default, or is ignored.
    for limit in ["ulimit -f 4", "trap '' XFSZ; ulimit -f 4"] {
        let mut limited = Command::new("bash");
        limited.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]).arg(gridguard());
        limited
            .args(args.words())
            .arg("--again")
            .current_dir(&folder)
            .env("GRIDGUARD_PROFILES", "off");
        let ran = Ran::from(limited.output().expect("a shell")).exits(3);
        let why = "curve.svg: writing a temporary file: File too large";
        ran.notes(why);
        assert_eq!(fs::read_to_string(&plot).expect("there"), "old");
    }
    run(folder.path(), &format!("{args} --again")).exits(0);
    assert!(fs::read_to_string(&plot).expect("there").starts_with("<svg"));
    assert_eq!(fs::metadata(&plot).expect("there").permissions().mode() & 0o777, 0o640);
    let mut names: Vec<_> = fs::read_dir(&folder)
        .expect("a folder")
        .map(|file| file.expect("a file").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["curve.svg", "p.ron"]);
}

#[test]
fn tensors_larger_than_the_memory_fail_with_their_size() {
    let folder = folder();
    let shape = "tune --device host --kernel rms_norm --profile p.ron";
    let ran = run(folder.path(), &format!("{shape} --shape 100000000000000x8"));
    ran.exits(1).notes("the host cannot allocate 1600000000000000 bytes");
}

#[test]
fn the_user_s_folder_must_be_an_absolute_path() {
    let folder = folder();
    let home = folder.path().join("home");
    fs::create_dir(&home).expect("made");
    let home = home.to_str().expect("a name");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    let file = file.to_str().expect("a name");
    let tuned = |variables: &[(&str, &str)]| {
        let mut command = command(folder.path(), TUNE);
        for name in ["GRIDGUARD_PROFILES", "XDG_CACHE_HOME", "XDG_DATA_HOME", "HOME"] {
            command.env_remove(name);
        }
        Ran::from(command.envs(variables.iter().copied()).output().expect("runs"))
    };
    for none in [&[("HOME", "home")][..], &[("HOME", "home"), ("XDG_DATA_HOME", "data")]] {
        tuned(none).exits(2).notes("no folder for this user's profiles");
    }
    // The profiles of an earlier version are read where they are, and moved before the first is written.
    let [old, new] =
        [".cache", ".local/share"].map(|base| format!("{home}/{base}/gridguard/profiles"));
    tuned(&[("HOME", home), ("GRIDGUARD_PROFILES", &old)]).exits(0).prints("1 tuned");
    for usual in [&[("HOME", home)][..], &[("HOME", home), ("XDG_DATA_HOME", "data")]] {
        tuned(usual)
            .exits(0)
            .prints("1 already in the profile")
            .prints(&format!("profile {new}/host-"));
        assert!(!Path::new(&old).exists());
    }
    assert!(!folder.path().join("data").exists());
    for unusable in [[("HOME", file)], [("GRIDGUARD_PROFILES", file)], [("HOME", "/proc")]] {
        let ran = tuned(&unusable).exits(3);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        assert!(ran.out.is_empty(), "{}", ran.out);
        let is_created = unusable == [("HOME", "/proc")];
        assert_eq!(
            ran.err.contains(", in the user's folder (--profile names another file): "),
            is_created
        );
    }
}

#[test]
fn a_profile_that_cannot_be_written_is_kept_and_the_error_says_what_to_do() {
    let folder = folder();
    run(folder.path(), &tune("--profile p.ron")).exits(0);
    let before = fs::read(folder.path().join("p.ron")).expect("a profile");
    let mut full = Command::new("bash");
    full.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\""]).arg(gridguard());
    full.args(tune("--shape 200x8 --profile p.ron").words()).current_dir(&folder);
    let ran = Ran::from(full.output().expect("a shell")).exits(1);
    ran.notes("cannot write p.ron (writing a temporary file): File too large");
    ran.notes("; the profile is as before: make room, or name another file with --profile");
    assert_eq!(fs::read(folder.path().join("p.ron")).expect("a profile"), before);
    let mut names = fs::read_dir(&folder).expect("a folder").flatten().map(|it| it.file_name());
    assert!(names.all(|name| name == "p.ron" || name == "p.ron.unfinished"));
    run(folder.path(), &tune("--shape 200x8 --profile p.ron")).exits(0);
    assert_eq!(parsed(&folder.path().join("p.ron")).entries().len(), 2);
}

#[test]
fn ctrl_c_while_the_profile_is_written_ends_with_the_old_or_the_new_profile() {
    for (signals, entries) in [(1, 2), (2, 1)] {
        let folder = folder();
        run(folder.path(), &tune("--profile p.ron")).exits(0);
        let lock = folder.path().join("p.ron.lock");
        let held = FileLock::acquire(&lock, Duration::ZERO).expect("free");
        let child = start(folder.path(), &tune("--shape 200x8 --profile p.ron"));
        let open_files = format!("/proc/{}/fd", child.id());
        let waits = || {
            let mut files = fs::read_dir(&open_files).into_iter().flatten().flatten();
            files.any(|file| fs::read_link(file.path()).is_ok_and(|open| open == lock))
        };
        wait_until(waits);
        let interrupt = || Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(interrupt().expect("sent").success());
        if signals == 2 {
            std::thread::sleep(Duration::from_millis(200));
            assert!(interrupt().expect("sent").success());
        } else {
            drop(held);
        }
        Ran::from(child.wait_with_output().expect("ends")).exits(130);
        assert_eq!(parsed(&folder.path().join("p.ron")).entries().len(), entries);
    }
}

#[test]
fn a_signal_ends_the_run_in_order_with_one_document() {
    for asked in ["-TERM", "-HUP"] {
        let folder = folder();
        let more = "--shape 300000x8 --profile p.ron --format json";
        let child = start(folder.path(), &tune(more));
        // The first problem is stored, and the second takes much longer.
        wait_until(|| folder.path().join("p.ron").exists());
        let ran = signal(child, asked).exits(130);
        let json = ran.json();
        assert_eq!((&json["interrupted"], &json["left"]), (&true.into(), &1.into()));
        assert_eq!(parsed(&folder.path().join("p.ron")).entries().len(), 1);
    }
}
