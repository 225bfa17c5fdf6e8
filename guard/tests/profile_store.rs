//! Concurrent writers of one profile: no entry is lost, and readers see complete files.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use gridguard::DeviceLimits;
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Key, MatchKind, MissLog, ProfileError,
    Provenance, StoredChoice, Summary, load, publish, update,
};

/// Make this binary write instead of test: what, and where.
const ROLE: &str = "GRIDGUARD_TEST_WRITER";
const PATH: &str = "GRIDGUARD_TEST_PATH";
/// Entries of each of the writers at once.
const ENTRIES: u64 = 25;

fn device() -> DeviceIdentity {
    DeviceIdentity::new(&DeviceLimits::any_device())
}

fn entry(kernel: &str, rows: u64, date: u64) -> Entry {
    Entry {
        key: Key { kernel: kernel.into(), dtypes: "f16".into(), ..Key::default() },
        shape: vec![("rows".into(), rows)],
        choice: StoredChoice::Whole,
        parameters: Vec::new(),
        launches: 1,
        chosen: Summary::default(),
        default: Summary::default(),
        found: Provenance { date: dated(date), ..Provenance::default() },
    }
}

/// A date so many seconds after the first.
fn dated(seconds: u64) -> String {
    let date = UNIX_EPOCH + Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(date).to_string()
}

fn document(entries: impl IntoIterator<Item = Entry>) -> Document {
    let mut document = Document::new(device(), Environment::default());
    for entry in entries {
        document.insert(entry).expect("within the limits");
    }
    document
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

/// A writer prints it after its first write.
const WRITES: &str = "writes";

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
                let entries = (1..300).map(|rows| entry("forever", rows, date));
                publish(path, &document(entries)).expect("published");
                if date == 0 {
                    println!("\n{WRITES}");
                }
            }
        }
        "too large for its limit" => {
            let entries = (1..1000).map(|rows| entry("large", rows, 1));
            let refused = publish(path, &document(entries)).expect_err("no room");
            let ProfileError::Write { kind, .. } = refused else { panic!("{refused}") };
            assert_eq!(kind, ErrorKind::FileTooLarge);
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
    assert_eq!(names_in(parent), ["any.ron", "any.ron.lock"]);
}

#[test]
fn a_killed_writer_leaves_the_old_file_or_the_new_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = profile_in(&folder);
    let (mut kills, mut dates) = (0, std::collections::BTreeSet::new());
    // The delay before the kill decides how far the process gets.
    for round in 0..120_u64 {
        let mut writer = writer_process("forever", &path);
        let mut writer = writer.stdout(Stdio::piped()).spawn().expect("starts");
        // However long the process takes to start on a busy machine.
        let mut said = BufReader::new(writer.stdout.take().expect("its output")).lines();
        assert!(said.any(|line| line.is_ok_and(|line| line == WRITES)), "it never wrote a file");
        std::thread::sleep(Duration::from_micros(round * 7919 % 9000));
        writer.kill().expect("killed");
        kills += u32::from(!writer.wait().expect("ends").success());
        if let Some(read) = load(&path).expect("a whole file") {
            assert_eq!((read.faults.len(), read.document.entries().len()), (0, 299));
            let date = |entry: &Entry| entry.found.date.clone();
            let written: Vec<_> = read.document.entries().iter().map(date).collect();
            assert!(written.iter().all(|one| *one == written[0]), "half of two files");
            dates.extend(written);
        }
    }
    assert_eq!(kills, 120);
    assert!(!dates.is_empty(), "no writer finished a file");
    // The next writer deletes the leftovers.
    publish(&path, &document([entry("after", 1, 1)])).expect("the lock died with its holder");
    let parent = path.parent().expect("a folder");
    assert_eq!(names_in(parent), ["any.ron", "any.ron.lock"]);
}

#[test]
fn a_concurrent_reader_always_sees_a_whole_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = profile_in(&folder);
    publish(&path, &document((1..300).map(|rows| entry("forever", rows, 0)))).expect("published");
    let mut writer = writer_process("forever", &path).spawn().expect("starts");
    for _ in 0..300 {
        let read = load(&path).expect("a whole file").expect("always there");
        assert_eq!((read.faults.len(), read.document.entries().len()), (0, 299));
    }
    writer.kill().expect("killed");
    writer.wait().expect("ends");
}

/// The shell's limit on file sizes simulates a full disk: writing fails halfway.
#[cfg(unix)]
#[test]
fn on_a_full_disk_the_old_file_is_unchanged_and_no_temporary_file_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = profile_in(&folder);
    publish(&path, &document([entry("small", 1, 1)])).expect("published");
    let before = fs::read(&path).expect("reads");
    let this = std::env::current_exe().expect("this binary");
    let mut limited = Command::new("sh");
    // Ignoring the signal turns it into an error. Blocks of 512 bytes or of 1,024, by the shell.
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" --exact profile_store::writer"])
        .arg(this);
    limited.env(ROLE, "too large for its limit").env(PATH, &path);
    let ran = limited.output().expect("a shell");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    assert_eq!(fs::read(&path).expect("reads"), before);
    let parent = path.parent().expect("a folder");
    assert_eq!(names_in(parent), ["any.ron", "any.ron.lock"]);
}

#[test]
fn an_error_names_the_path_that_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("writes");
    let ours = document([entry("copy", 1, 1)]);
    let refused = |path: &Path| publish(path, &ours).expect_err("no place for a file");
    let ProfileError::Write { path, step, kind, .. } = refused(&file.join("any.ron")) else {
        panic!("a file is no folder");
    };
    assert_eq!((path, step), (file.join("any.ron"), "creating its folder"));
    assert!(matches!(kind, ErrorKind::NotADirectory | ErrorKind::AlreadyExists), "{kind}");
    let long = folder.path().join("n".repeat(300));
    let ProfileError::Write { kind, .. } = refused(&long) else { panic!("a name too long") };
    assert_eq!(kind, ErrorKind::InvalidFilename);
    let error = ProfileError::NotAFile { path: folder.path().to_owned() };
    let path = folder.path().to_owned();
    let reason = Box::new(error);
    assert_eq!(refused(folder.path()), ProfileError::NotReplaced { path, reason });
}

/// Not even root can create files in `/proc`.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_without_write_permission_is_an_error_and_can_still_be_read() {
    let path = Path::new("/proc/self/any.ron");
    let refused = publish(path, &document([entry("copy", 1, 1)])).expect_err("no new files there");
    assert!(
        matches!(refused, ProfileError::Write { step: "opening its lock file", .. }),
        "{refused}"
    );
    assert_eq!(load(path), Ok(None));
}

#[test]
fn a_file_whose_entries_would_be_lost_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("any.ron");
    let ours = document([entry("copy", 1, 1)]);
    let newer = ours.to_ron().replace("schema: 1", "schema: 2");
    let broken = ours.to_ron().replace("device:", "gadget:");
    for text in [&newer, &broken, "", "\u{1}\u{2}"] {
        fs::write(&path, text).expect("writes");
        let refused = publish(&path, &ours).expect_err("not to be overwritten");
        assert!(matches!(refused, ProfileError::NotReplaced { .. }), "{refused}");
        assert_eq!(fs::read_to_string(&path).expect("reads"), *text);
    }
    fs::write(&path, b"\xff\xfe binary").expect("writes");
    let refused = publish(&path, &ours).expect_err("not to be overwritten");
    let reason = Box::new(ProfileError::NotText { offset: 0 });
    assert_eq!(refused, ProfileError::NotReplaced { path: path.clone(), reason });
    let host = Document::new(device().on_host(), Environment::default());
    fs::write(&path, host.to_ron()).expect("writes");
    let refused = publish(&path, &ours).expect_err("the host's");
    let ProfileError::NotReplaced { reason, .. } = refused else { panic!("{refused}") };
    let ProfileError::OtherDevice { mismatch, .. } = *reason else { panic!("{reason}") };
    assert_eq!(mismatch.property, "the backend");
    assert_eq!(fs::read_to_string(&path).expect("reads"), host.to_ron());
}

#[test]
fn a_file_with_bad_entries_is_copied_and_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("any.ron");
    let text = document([entry("copy", 1, 1), entry("sum", 1, 1)]).to_ron();
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
    assert_eq!(names_in(folder.path()), [".any.ron.aBcDeF.tmp", "any", "any.lock"]);
    publish(&folder.path().join("any.ron"), &document([])).expect("published");
    assert_eq!(names_in(folder.path()), ["any", "any.lock", "any.ron", "any.ron.lock"]);
}

/// The log is empty while it is written, so others can fill it again before the write fails.
#[test]
fn a_log_of_misses_does_not_grow_beyond_its_capacity_if_writing_fails() {
    const CAPACITY: usize = 8;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("misses.ron");
    fs::create_dir(&path).expect("a folder with the name of the file");
    let lock = fs::File::create(folder.path().join("misses.ron.lock")).expect("the lock's file");
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

#[test]
fn a_conflict_is_reported_and_the_later_entry_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("any.ron");
    publish(&path, &document([entry("copy", 1, 2)])).expect("published");
    let published = publish(&path, &document([entry("copy", 1, 1)])).expect("published");
    assert_eq!((published.outcome.len(), published.entries), (1, 1));
    let kept = load(&path).expect("reads").expect("is there").document;
    assert_eq!(kept, document([entry("copy", 1, 2)]));
}

/// A link to a profile stays a link.
#[cfg(unix)]
#[test]
fn a_link_is_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, link) = (folder.path().join("any.ron"), folder.path().join("link.ron"));
    publish(&path, &document([entry("copy", 1, 1)])).expect("published");
    std::os::unix::fs::symlink(&path, &link).expect("links");
    publish(&link, &document([entry("sum", 1, 1)])).expect("published");
    assert!(link.is_symlink());
    let read = load(&path).expect("reads").expect("is there");
    assert_eq!(read.document.entries().len(), 2);
}
