//! Concurrent writers of one profile: no entry is lost, and readers see complete files.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use gridguard::profile::{
    Document, Entry, Environment, MatchKind, MissLog, ProfileErrorKind, Provenance, load, publish,
    update,
};

use crate::profiles::{self, device, document};

/// Make this binary write instead of test: what, and where.
const ROLE: &str = "GRIDGUARD_TEST_WRITER";
const PATH: &str = "GRIDGUARD_TEST_PATH";
/// Entries of each of the writers at once.
const ENTRIES: u64 = 25;

fn entry(kernel: &str, rows: u64, date: u64) -> Entry {
    let found = Provenance { date: dated(date), ..Provenance::default() };
    Entry { found, ..profiles::entry(kernel, rows) }
}

/// A date so many seconds after the first.
fn dated(seconds: u64) -> String {
    let date = UNIX_EPOCH + Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(date).to_string()
}

fn profile_in(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("profiles").join("any.ron")
}

fn names_in(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file"));
    let mut names: Vec<_> =
        files.map(|file| file.file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// This binary, running the test `writer` in a role.
fn writer_process(role: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .args(["--exact", "profile_store::writer", "--nocapture"])
        .env(ROLE, role)
        .env(PATH, path);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The writers that other tests start. Without a role it does nothing.
#[test]
fn writer() {
    let (Ok(role), Some(path)) = (std::env::var(ROLE), std::env::var_os(PATH)) else {
        return;
    };
    let path = Path::new(&path);
    match &*role {
        "forever" => {
            for date in 0.. {
                let entries = (1..60).map(|rows| entry("forever", rows, date));
                publish(path, &document(entries)).expect("published");
            }
        }
        kernel => {
            for rows in 1..=ENTRIES {
                publish(path, &document([entry(kernel, rows, 1)])).expect("published");
            }
        }
    }
}

#[test]
fn concurrent_writers_lose_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = profile_in(&folder);
    let kernels = ["a", "b", "c", "d"];
    let start = |kernel: &&str| writer_process(kernel, &path).spawn().expect("starts");
    let writers: Vec<Child> = kernels.iter().map(start).collect();
    for mut writer in writers {
        assert!(writer.wait().expect("ends").success());
    }
    let read = load(&path).expect("reads").expect("is there");
    assert_eq!(read.faults, []);
    let all = kernels.iter().flat_map(|kernel| (1..=ENTRIES).map(|rows| entry(kernel, rows, 1)));
    assert_eq!(read.document, document(all));
    let parent = path.parent().expect("a folder");
    assert_eq!(names_in(parent), ["any.ron"]);
}

#[test]
fn a_concurrent_reader_always_sees_a_whole_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = profile_in(&folder);
    publish(&path, &document((1..60).map(|rows| entry("forever", rows, 0)))).expect("published");
    let mut writer = writer_process("forever", &path).spawn().expect("starts");
    for _ in 0..300 {
        let read = load(&path).expect("a whole file").expect("always there");
        assert_eq!((read.faults.len(), read.document.entries().len()), (0, 59));
    }
    writer.kill().expect("killed");
    writer.wait().expect("ends");
    // The lock ended with its holder, and the next writer removes what that left.
    assert_eq!(load(&path).expect("a whole file").expect("there").document.entries().len(), 59);
    publish(&path, &document([entry("after", 1, 1)])).expect("published");
    let parent = path.parent().expect("a folder");
    assert_eq!(names_in(parent), ["any.ron"]);
}

#[test]
fn an_error_names_the_path_that_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("writes");
    let ours = document([entry("copy", 1, 1)]);
    let refused = |path: &Path| publish(path, &ours).expect_err("no place for a file");
    let error = refused(&file.join("any.ron"));
    let ProfileErrorKind::Write(kind) = error.kind() else { panic!("{error}") };
    let start = format!("cannot write {} (creating its folder): ", file.join("any.ron").display());
    assert!(error.to_string().starts_with(&start), "{error}");
    assert!(matches!(kind, ErrorKind::NotADirectory | ErrorKind::AlreadyExists), "{kind}");
    let long = folder.path().join("n".repeat(300));
    assert_eq!(*refused(&long).kind(), ProfileErrorKind::Write(ErrorKind::InvalidFilename));
    let (error, path) = (refused(folder.path()), folder.path().display());
    assert_eq!(*error.kind(), ProfileErrorKind::NotReplaced);
    let not_a_file = format!("{path} was not overwritten: {path} is not a regular file: ");
    assert!(error.to_string().starts_with(&not_a_file), "{error}");
}

/// Not even root can create files in `/proc`.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_without_write_permission_is_an_error_and_can_still_be_read() {
    let path = Path::new("/proc/self/any.ron");
    let refused = publish(path, &document([entry("copy", 1, 1)])).expect_err("no new files there");
    assert!(matches!(refused.kind(), ProfileErrorKind::Write(_)), "{refused}");
    assert!(refused.to_string().contains(" (opening its lock file): "), "{refused}");
    assert_eq!(load(path), Ok(None));
}

#[test]
fn a_file_whose_entries_would_be_lost_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("any.ron");
    let ours = document([entry("copy", 1, 1)]);
    let newer = ours.to_string().replace("schema: 1", "schema: 3");
    let broken = ours.to_string().replace("device:", "gadget:");
    let host = Document::new(device().on_host(), Environment::default()).to_string();
    for (bytes, why) in [
        (newer.as_bytes(), ""),
        (broken.as_bytes(), ""),
        (b"", ""),
        (b"\x01\x02", ""),
        (b"\xff\xfe binary", "the file is not UTF-8 at byte 0: "),
        (host.as_bytes(), "cannot be merged: the backend is "),
    ] {
        fs::write(&path, bytes).expect("writes");
        let refused = publish(&path, &ours).expect_err("not to be overwritten");
        assert_eq!(*refused.kind(), ProfileErrorKind::NotReplaced, "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
        assert_eq!(fs::read(&path).expect("reads"), bytes);
    }
}

#[test]
fn a_file_with_bad_entries_is_copied_and_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("any.ron");
    let text = document([entry("copy", 1, 1), entry("sum", 1, 1)]).to_string();
    let bad = text.replacen("launches: 1", "launches: many", 1);
    for backup in ["any.ron.bak", "any.ron.bak1"] {
        fs::write(&path, &bad).expect("writes");
        let published = publish(&path, &document([entry("new", 1, 1)])).expect("published");
        assert_eq!((published.entries, published.faults.len()), (2, 1));
        let backup = folder.path().join(backup);
        assert_eq!(published.backup.as_ref(), Some(&backup));
        assert_eq!(fs::read_to_string(backup).expect("reads"), bad);
    }
    let again = publish(&path, &document([])).expect("published");
    assert_eq!((again.entries, again.backup), (2, None));
}

#[test]
fn a_writer_leaves_the_temporary_files_of_other_profiles() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("any");
    for name in [".any.ron.aBcDeF.tmp", ".any.aBcDeF.tmp"] {
        fs::write(folder.path().join(name), "").expect("writes");
    }
    publish(&path, &document([entry("copy", 1, 1)])).expect("published");
    assert_eq!(names_in(folder.path()), [".any.ron.aBcDeF.tmp", "any"]);
    publish(&folder.path().join("any.ron"), &document([])).expect("published");
    assert_eq!(names_in(folder.path()), ["any", "any.ron"]);
}

/// The log is empty while it is written, so others can fill it again before the write fails.
#[test]
fn a_log_of_misses_does_not_grow_beyond_its_capacity_if_writing_fails() {
    const CAPACITY: usize = 8;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("misses.ron");
    fs::create_dir(&path).expect("a folder with the name of the file");
    let log = MissLog::new(CAPACITY);
    let key = entry("copy", 1, 1).key;
    let mut rows = 1..;
    let mut fill = || {
        rows.by_ref().take(CAPACITY).for_each(|rows| {
            log.record(&key, &["rows"], &[rows], MatchKind::Default);
        });
    };
    fill();
    for failures in 1..=3 {
        let lock = fs::File::create(folder.path().join("misses.ron.lock")).expect("its lock");
        lock.lock().expect("locked");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| log.write(&path));
            while !log.snapshot().is_empty() {
                std::thread::yield_now();
            }
            fill();
            lock.unlock().expect("unlocked");
            writer.join().expect("ends").expect_err("a folder is no file");
        });
        assert_eq!(log.snapshot().len(), CAPACITY);
        assert_eq!(log.dropped(), failures * 8);
    }
}

#[test]
fn an_update_changes_the_existing_entries() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("any.ron");
    publish(&path, &document([entry("copy", 1, 1), entry("sum", 1, 1)])).expect("published");
    let pruned = update(&path, document([]), |document| {
        document.retain(|entry| entry.key.kernel != "copy");
        Ok(document.entries().len())
    });
    assert_eq!(pruned.expect("published").outcome, 1);
    let left = load(&path).expect("reads").expect("is there").document;
    assert_eq!(left, document([entry("sum", 1, 1)]));
}

#[cfg(unix)]
#[test]
fn a_link_as_lock_file_is_refused_and_what_it_leads_to_is_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, other) = (folder.path().join("p.ron"), folder.path().join("other"));
    fs::write(&other, "precious").expect("written");
    std::os::unix::fs::symlink(&other, folder.path().join("p.ron.lock")).expect("a link");
    let refused =
        publish(&path, &document([entry("copy", 1, 1)])).expect_err("a link is not locked");
    assert!(matches!(refused.kind(), ProfileErrorKind::Write(_)), "{refused}");
    assert!(refused.to_string().contains(" (opening its lock file): "), "{refused}");
    assert_eq!(fs::read_to_string(&other).expect("there"), "precious");
}
