//! Profile files in unusual states: pipes, links, modes.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use gridguard::DeviceLimits;
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
}

/// For example a link to a disk that is not mounted.
#[test]
fn a_link_into_a_missing_folder_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, disk) = (folder.path().join("p.ron"), folder.path().join("disk"));
    symlink(disk.join("p.ron"), &link).expect("a link");
    let refused = publish(&link, &document(1)).expect_err("no folder");
    assert!(matches!(refused, ProfileError::Write { kind: ErrorKind::NotFound, .. }), "{refused}");
    assert!(link.is_symlink() && !disk.exists());
}

#[test]
fn links_in_a_circle_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, two] = ["one.ron", "two.ron"].map(|name| folder.path().join(name));
    symlink(&two, &one).expect("a link");
    symlink(&one, &two).expect("a link");
    publish(&one, &document(1)).expect_err("a circle");
    assert!(one.is_symlink() && two.is_symlink());
}

#[test]
fn a_pipe_or_device_is_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.ron");
    pipe(&path);
    publish(&path, &document(1)).expect_err("not a file");
    fs::remove_file(&path).expect("removed");
    symlink("/dev/full", &path).expect("a link");
    publish(&path, &document(1)).expect_err("not a file");
    assert!(path.is_symlink() && !fs::metadata("/dev/full").expect("a device").is_file());
}
