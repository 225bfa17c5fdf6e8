//! Files in unusual states: pipes, links, modes, full disks, several writers.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use gridguard_files::{check_output, publish, write_output};

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o7777
}

#[test]
fn a_replaced_file_keeps_its_mode() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    publish(&path, b"one").expect("published");
    for bits in [0o600, 0o640, 0o664, 0o604] {
        fs::set_permissions(&path, Permissions::from_mode(bits)).expect("its mode");
        publish(&path, b"two").expect("published");
        assert_eq!(mode(&path), bits);
    }
}

#[test]
fn the_missing_target_of_a_link_is_created() {
    let folder = tempfile::tempdir().expect("a folder");
    let [link, second, below] = ["link", "second", "below"].map(|name| folder.path().join(name));
    fs::create_dir(&below).expect("made");
    symlink("second", &link).expect("a link");
    symlink("below/target", &second).expect("a link");
    publish(&link, b"text").expect("published");
    assert!(link.is_symlink() && second.is_symlink());
    assert_eq!(fs::read(below.join("target")).expect("there"), b"text");
}

/// For example a link to a disk that is not mounted.
#[test]
fn a_link_into_a_missing_folder_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, disk) = (folder.path().join("link"), folder.path().join("disk"));
    symlink(disk.join("file"), &link).expect("a link");
    let refused = publish(&link, b"text").expect_err("no folder");
    assert_eq!(refused.error.kind(), ErrorKind::NotFound);
    assert!(link.is_symlink() && !disk.exists());
}

#[test]
fn a_circle_of_links_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    symlink(&two, &one).expect("a link");
    symlink(&one, &two).expect("a link");
    publish(&one, b"text").expect_err("a circle");
    assert!(one.is_symlink() && two.is_symlink());
}

#[test]
fn a_pipe_or_device_is_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    pipe(&path);
    publish(&path, b"text").expect_err("not a file");
    fs::remove_file(&path).expect("removed");
    symlink("/dev/full", &path).expect("a link");
    publish(&path, b"text").expect_err("not a file");
    assert!(path.is_symlink() && !fs::metadata("/dev/full").expect("a device").is_file());
}

/// Names the file that the test `publisher` writes in a process of its own.
const PUBLISHES: &str = "GRIDGUARD_TEST_PUBLISHES";

/// Runs in the process that the next test starts.
#[test]
fn publisher() {
    let Some(path) = std::env::var_os(PUBLISHES) else { return };
    let error = publish(Path::new(&path), &[b'x'; 100_000]).expect_err("no room");
    assert_eq!(error.error.kind(), ErrorKind::FileTooLarge);
    assert_eq!(error.step, "writing a temporary file");
}

/// A limit on the size of files simulates a full disk.
#[test]
fn on_a_full_disk_the_old_file_is_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    publish(&path, b"old").expect("published");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("its mode");
    let mut limited = Command::new("sh");
    // With the signal ignored, the write returns an error.
    limited.args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" --exact publisher"]);
    limited.arg(std::env::current_exe().expect("this binary")).env(PUBLISHES, &path);
    let ran = limited.output().expect("a shell");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    assert_eq!((fs::read(&path).expect("there"), mode(&path)), (b"old".to_vec(), 0o640));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

/// Even root cannot create files there.
#[test]
fn a_read_only_folder_is_an_error() {
    let path = Path::new("/proc/self/file");
    let error = publish(path, b"text").expect_err("no new files there");
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
                    publish(path, &[thread; 10_000]).expect("published");
                }
            });
        }
    });
    let text = fs::read(&path).expect("there");
    assert!(text.len() == 10_000 && text.iter().all(|byte| *byte == text[0]));
    assert_eq!(fs::read_dir(path.parent().expect("one")).expect("a folder").count(), 1);
}

/// Only root can change the owner.
#[test]
fn a_replaced_file_keeps_its_owner_or_the_change_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    publish(&path, b"old").expect("published");
    let is_given = chown(&path, Some(4711), Some(4712)).is_ok();
    assert_eq!(publish(&path, b"new").expect("published"), None);
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
    // An open file.
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
