//! Files in unusual states: pipes, links, modes, dates, full disks.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use gridguard::DeviceLimits;
use gridguard::files::{check_output, publish as publish_file, write_output};
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Key, ProfileError, Provenance, StoredChoice,
    Summary, load, publish,
};

fn document(rows: u64) -> Document {
    let device = DeviceIdentity::new(&DeviceLimits::any_device());
    let mut document = Document::new(device, Environment::default());
    let entry = Entry {
        key: Key { kernel: "copy".into(), dtypes: "f16".into(), ..Key::default() },
        shape: vec![("rows".into(), rows)],
        choice: StoredChoice::Whole,
        parameters: Vec::new(),
        launches: 1,
        chosen: Summary::default(),
        default: Summary::default(),
        found: Provenance { date: "2026-11-20T12:00:00Z".into(), ..Provenance::default() },
    };
    document.insert(entry).expect("within the limits");
    document
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o7777
}

#[test]
fn a_pipe_as_lock_file_is_refused_without_waiting_for_a_reader() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.ron");
    pipe(&folder.path().join("p.ron.lock"));
    let refused = publish(&path, &document(1)).expect_err("no regular file to lock");
    let ProfileError::Write { step, reason, .. } = &refused else { panic!("{refused}") };
    assert_eq!((*step, &**reason), ("opening its lock file", "it is not a regular file"));
    assert!(!path.exists());
}

#[test]
fn a_link_as_lock_file_is_refused_and_what_it_leads_to_is_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, other) = (folder.path().join("p.ron"), folder.path().join("other"));
    fs::write(&other, "precious").expect("written");
    symlink(&other, folder.path().join("p.ron.lock")).expect("a link");
    let refused = publish(&path, &document(1)).expect_err("a link is not locked");
    assert!(
        matches!(refused, ProfileError::Write { step: "opening its lock file", .. }),
        "{refused}"
    );
    assert_eq!(fs::read_to_string(&other).expect("there"), "precious");
}

#[test]
fn a_replaced_file_keeps_its_mode() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.ron");
    publish(&path, &document(1)).expect("published");
    for bits in [0o600, 0o640, 0o664, 0o604] {
        fs::set_permissions(&path, Permissions::from_mode(bits)).expect("its mode");
        publish(&path, &document(2)).expect("published");
        assert_eq!(mode(&path), bits);
        publish_file(&path, document(1).to_ron().as_bytes()).expect("published");
        assert_eq!(mode(&path), bits);
    }
    // A profile is no program.
    fs::set_permissions(&path, Permissions::from_mode(0o4755)).expect("its mode");
    publish(&path, &document(3)).expect("published");
    assert_eq!(mode(&path), 0o755);
}

#[test]
fn a_link_that_leads_nowhere_gets_its_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, second) = (folder.path().join("p.ron"), folder.path().join("second.ron"));
    let target = folder.path().join("below").join("target.ron");
    fs::create_dir(target.parent().expect("a folder")).expect("made");
    symlink("second.ron", &link).expect("a link");
    symlink("below/target.ron", &second).expect("a link");
    publish(&link, &document(1)).expect("published");
    assert!(link.is_symlink() && second.is_symlink());
    assert_eq!(load(&target).expect("reads").expect("is there").document, document(1));
    fs::remove_file(&target).expect("removed");
    publish_file(&link, b"text").expect("published");
    assert!(link.is_symlink() && second.is_symlink());
    assert_eq!(fs::read_to_string(&target).expect("there"), "text");
}

/// For example a link to a disk that is not mounted.
#[test]
fn a_link_into_a_missing_folder_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, disk) = (folder.path().join("p.ron"), folder.path().join("disk"));
    symlink(disk.join("p.ron"), &link).expect("a link");
    let refused = publish(&link, &document(1)).expect_err("no folder");
    assert!(matches!(refused, ProfileError::Write { kind: ErrorKind::NotFound, .. }), "{refused}");
    let refused = publish_file(&link, b"text").expect_err("no folder");
    assert_eq!(refused.error.kind(), ErrorKind::NotFound);
    assert!(link.is_symlink() && !disk.exists());
}

#[test]
fn links_in_a_circle_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, two] = ["one.ron", "two.ron"].map(|name| folder.path().join(name));
    symlink(&two, &one).expect("a link");
    symlink(&one, &two).expect("a link");
    publish(&one, &document(1)).expect_err("a circle");
    publish_file(&one, b"text").expect_err("a circle");
    assert!(one.is_symlink() && two.is_symlink());
}

/// Makes this binary write a file at this path instead of running its tests.
const PUBLISHES: &str = "GRIDGUARD_TEST_PUBLISHES";

/// What other tests start. Without the variable it does nothing.
#[test]
fn publisher() {
    let Some(path) = std::env::var_os(PUBLISHES) else { return };
    let error = publish_file(Path::new(&path), &[b'x'; 100_000]).expect_err("no room");
    assert_eq!(error.error.kind(), ErrorKind::FileTooLarge);
    assert_eq!(error.step, "writing a temporary file");
}

/// The shell's limit on file sizes simulates a full disk.
#[test]
fn on_a_full_disk_the_old_file_stays_with_its_mode_and_nothing_else_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    publish_file(&path, b"old").expect("published");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("its mode");
    let mut limited = Command::new("sh");
    // Ignoring the signal turns it into an error.
    limited.args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" --exact publisher"]);
    limited.arg(std::env::current_exe().expect("this binary")).env(PUBLISHES, &path);
    let ran = limited.output().expect("a shell");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    assert_eq!((fs::read(&path).expect("there"), mode(&path)), (b"old".to_vec(), 0o640));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

/// Nobody, not even root, may create files there.
#[test]
fn a_read_only_folder_is_an_error() {
    let path = Path::new("/proc/self/file");
    let error = publish_file(path, b"text").expect_err("no new files there");
    assert_eq!(error.step, "creating a temporary file");
    check_output(&Path::new("/sys").join("file")).expect_err("no new files there");
}

#[test]
fn threads_that_publish_at_once_leave_one_whole_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new").join("folders").join("file");
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..20 {
                    publish_file(path, &[thread; 10_000]).expect("published");
                }
            });
        }
    });
    let text = fs::read(&path).expect("there");
    assert!(text.len() == 10_000 && text.iter().all(|byte| *byte == text[0]));
    assert_eq!(fs::read_dir(path.parent().expect("one")).expect("a folder").count(), 1);
}

/// Only root may give files away.
#[test]
fn a_replaced_file_keeps_its_owner_or_the_change_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    publish_file(&path, b"old").expect("published");
    let is_given = chown(&path, Some(4711), Some(4712)).is_ok();
    assert_eq!(publish_file(&path, b"new").expect("published"), None);
    let kept = fs::metadata(&path).expect("there");
    let expected = if is_given { 4711 } else { fs::metadata(folder.path()).expect("there").uid() };
    assert_eq!(kept.uid(), expected);
}

#[test]
fn output_goes_to_a_pipe_a_device_and_an_open_file_and_replaces_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, fifo) = (folder.path().join("file"), folder.path().join("pipe"));
    pipe(&fifo);
    check_output(&fifo).expect("does not wait");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(&fifo).expect("read"));
        write_output(&fifo, b"text").expect("written");
        assert_eq!(reader.join().expect("no panic"), b"text");
    });
    write_output(Path::new("/dev/null"), b"text").expect("written");
    let full = write_output(Path::new("/dev/full"), b"text").expect_err("full");
    assert_eq!((full.step, full.error.kind()), ("writing to it", ErrorKind::StorageFull));
    write_output(&path, b"one").expect("written");
    // A file that another program has open, such as a shell.
    let open = fs::File::options().append(true).open(&path).expect("open");
    let name = format!("/proc/self/fd/{}", open.as_raw_fd());
    write_output(Path::new(&name), b", two").expect("written");
    assert_eq!(open.metadata().expect("open").len(), 8);
    // A temporary file that a killed process left.
    let left = folder.path().join(".file.123456.tmp");
    let file = fs::File::create(&left).expect("made");
    file.set_modified(SystemTime::now() - Duration::from_secs(2 * 3600)).expect("its time");
    check_output(&path).expect("writable");
    write_output(&path, b"three").expect("written");
    assert_eq!(fs::read(&path).expect("there"), b"three");
    assert!(!left.exists());
    check_output(folder.path()).expect_err("a folder");
    check_output(&folder.path().join("none").join("file")).expect("can be created");
    assert!(!folder.path().join("none").exists());
}

#[test]
fn a_pipe_or_device_is_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.ron");
    pipe(&path);
    publish(&path, &document(1)).expect_err("not a file");
    publish_file(&path, b"text").expect_err("not a file");
    fs::remove_file(&path).expect("removed");
    symlink("/dev/full", &path).expect("a link");
    publish(&path, &document(1)).expect_err("not a file");
    publish_file(&path, b"text").expect_err("not a file");
    assert!(path.is_symlink() && !fs::metadata("/dev/full").expect("a device").is_file());
}
