//! Replaces files atomically.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;

use super::folder::{
    create_folder, create_private_folder, end_of_links, flush_folder_of, folder_of,
};
use super::place::{Place, place};

/// Why a file was not published.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {error}")]
pub struct PublishError {
    /// What failed, such as `creating its folder`.
    pub step: &'static str,
    /// The system's error.
    #[source]
    pub error: io::Error,
}

/// The owner or group of a replaced file changed, because this user may not give files to the former
/// one. A group that changed has the rights of everyone else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it belonged to user {}, group {}, and now belongs to user {}, group {}", old.0, old.1, new.0, new.1)]
pub struct OwnerChange {
    /// User and group before.
    pub old: (u32, u32),
    /// User and group now.
    pub new: (u32, u32),
}

/// Replaces the file at `path`, or creates it and its folder.
///
/// Readers see the old file or the new one, never a part, also after a crash or a power failure: the
/// new file is written beside the old one, flushed to disk, and renamed. It gets the old file's
/// permissions, owner and group; if owner or group cannot be kept, that is returned. Access control
/// lists and other names of the old file are not kept.
///
/// A link stays: the file that it leads to is replaced or created, the folder of that file must exist. A link
/// of another user than root or this one is not followed.
///
/// # Errors
///
/// [`PublishError`], also if there is a pipe or device at `path`. The old file is then unchanged, unless
/// the step is `flushing its folder to disk`, which follows the renaming.
pub fn publish(path: &Path, contents: &[u8]) -> Result<Option<OwnerChange>, PublishError> {
    let end = end_of_links(path).map_err(failed("following its link"))?;
    let old = match fs::symlink_metadata(&end) {
        Ok(old) if !old.is_file() => {
            let error = io::Error::new(ErrorKind::InvalidInput, "it is not a regular file");
            return Err(failed("replacing it")(error));
        }
        old => old.ok(),
    };
    if end == path {
        create_folder(folder_of(path)).map_err(failed("creating its folder"))?;
    }
    match old {
        Some(old) => replace_old(&end, contents, &old),
        None => replace(&end, written(&end, contents, Access::Umask)?).map(|()| None),
    }
}

/// As [`publish`], but for the user alone, whatever the umask: the file has the mode 0600, and folders
/// that are created have 0700; a link is replaced. On other systems than Unix it has no mode.
///
/// # Errors
///
/// As [`publish`].
pub fn publish_private(path: &Path, contents: &[u8]) -> Result<(), PublishError> {
    create_private_folder(folder_of(path)).map_err(failed("creating its folder"))?;
    replace(path, written(path, contents, Access::User)?)
}

/// As [`publish`], but leaves an existing file or link. Returns whether the new one was published.
///
/// # Errors
///
/// As [`publish`].
pub fn publish_new(path: &Path, contents: &[u8]) -> Result<bool, PublishError> {
    create_folder(folder_of(path)).map_err(failed("creating its folder"))?;
    persist_new(path, contents)
}

/// As [`publish_new`], in a folder that exists.
pub(super) fn persist_new(path: &Path, contents: &[u8]) -> Result<bool, PublishError> {
    match written(path, contents, Access::Umask)?.persist_noclobber(path) {
        Ok(_) => flushed(path).map(|()| true),
        Err(refused) if refused.error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(refused) => Err(failed("renaming")(refused.error)),
    }
}

/// Replaces the open file `old`, which is at `path`.
pub(super) fn persist_over(path: &Path, contents: &[u8], old: &File) -> Result<(), PublishError> {
    let old = old.metadata().map_err(failed("keeping its access"))?;
    replace_old(path, contents, &old).map(drop)
}

fn replace_old(
    path: &Path,
    contents: &[u8],
    old: &Metadata,
) -> Result<Option<OwnerChange>, PublishError> {
    let file = written(path, contents, Access::User)?;
    let change = keep_access(file.as_file(), old).map_err(failed("keeping its access"))?;
    replace(path, file)?;
    Ok(change)
}

/// Writes a program's output to the file that its user named: as [`publish`], but also to a pipe or
/// device, and to an open file such as `/dev/stdout`. Deletes temporary files more than an hour old that
/// killed processes left for the same file.
///
/// # Errors
///
/// As [`publish`].
pub fn write_output(path: &Path, contents: &[u8]) -> Result<Option<OwnerChange>, PublishError> {
    if is_stream(path).map_err(failed("replacing it"))? {
        let open = || File::options().append(true).open(path)?.write_all(contents);
        return open().map(|()| None).map_err(failed("writing to it"));
    }
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    delete_leftovers(folder_of(path), |file| file == name, LEFTOVER_AGE);
    publish(path, contents)
}

/// Checks that [`write_output`] can probably write the file. Changes nothing.
///
/// # Errors
///
/// [`PublishError`] if the folder or its nearest existing parent is not writable, or if `path` is a folder, a
/// socket or a block device.
pub fn check_output(path: &Path) -> Result<(), PublishError> {
    if is_stream(path).map_err(failed("replacing it"))? {
        // Opening a pipe would wait for its reader, and closing it would end it.
        return Ok(());
    }
    let end = end_of_links(path).map_err(failed("following its link"))?;
    let mut folder = folder_of(&end);
    // The folder of a link's target is not created.
    if end == path {
        let is_there = |folder: &&Path| !fs::symlink_metadata(folder).is_err_and(is_missing);
        folder = folder.ancestors().find(is_there).unwrap_or(Path::new("."));
    }
    let file = tempfile::tempfile_in(folder);
    file.map(drop).map_err(failed("creating a temporary file"))
}

/// Deletes the temporary files that killed processes left in `folder`, if they are older than `age`
/// and `is_wanted` accepts the name of the file that they were written for.
///
/// Does its best: a file that cannot be deleted only costs disk space.
pub fn delete_leftovers(folder: &Path, is_wanted: impl Fn(&[u8]) -> bool, age: Duration) {
    let Ok(files) = fs::read_dir(folder) else { return };
    for file in files.take(MAX_FILES_SCANNED).flatten() {
        if !written_for(file.file_name().as_encoded_bytes()).is_some_and(&is_wanted) {
            continue;
        }
        let written = file.metadata().and_then(|metadata| metadata.modified()).ok();
        let since = written.and_then(|written| SystemTime::now().duration_since(written).ok());
        if age.is_zero() || since.is_some_and(|since| since > age) {
            let _ = fs::remove_file(file.path());
        }
    }
}

fn is_missing(error: io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Whether a path leads to a pipe, a device or an open file, none of which can be replaced.
fn is_stream(path: &Path) -> io::Result<bool> {
    let is_open = OPEN_FILES.iter().any(|folder| path.starts_with(folder));
    Ok(is_open || place(&end_of_links(path)?)? == Place::Stream)
}

/// Who may use a new file.
#[derive(Clone, Copy, PartialEq)]
enum Access {
    /// For whom the process's umask allows, as any new file.
    Umask,
    /// The user alone.
    User,
}

/// A temporary file beside `path` with these contents, flushed to disk.
#[cfg_attr(not(unix), allow(unused_variables, reason = "no modes"))]
fn written(path: &Path, contents: &[u8], access: Access) -> Result<NamedTempFile, PublishError> {
    let prefix = temp_prefix(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).rand_bytes(RANDOM_BYTES).suffix(TEMP_SUFFIX);
    #[cfg(unix)]
    if access == Access::Umask {
        use std::os::unix::fs::PermissionsExt;
        // By itself the builder creates files for the user alone.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let file = builder.tempfile_in(folder_of(path));
    let mut file = file.map_err(failed("creating a temporary file"))?;
    file.write_all(contents).map_err(failed("writing a temporary file"))?;
    // Before renaming: after a power failure the name must not lead to bytes never written.
    file.as_file().sync_all().map_err(failed("flushing to disk"))?;
    Ok(file)
}

/// Gives a new file the owner, group and permissions of the old one. Returns what could not be kept.
#[cfg(unix)]
fn keep_access(file: &File, old: &Metadata) -> io::Result<Option<OwnerChange>> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        // One may be allowed without the other.
        let _ = fchown(file, None, Some(old.gid()));
        let _ = fchown(file, Some(old.uid()), None);
    }
    let new = file.metadata()?;
    let mode = kept_mode(old.mode(), new.gid() == old.gid());
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    let (old, new) = ((old.uid(), old.gid()), (new.uid(), new.gid()));
    Ok((old != new).then_some(OwnerChange { old, new }))
}

/// The permissions of a new file: those of the old one, but another group may do what everyone may.
#[cfg(unix)]
const fn kept_mode(old: u32, is_same_group: bool) -> u32 {
    let mode = old & 0o777;
    if is_same_group { mode } else { (mode & !0o070) | ((mode & 0o007) << 3) }
}

#[cfg(not(unix))]
fn keep_access(_: &File, _: &Metadata) -> io::Result<Option<OwnerChange>> {
    Ok(None)
}

fn replace(path: &Path, file: NamedTempFile) -> Result<(), PublishError> {
    file.persist(path).map_err(|refused| failed("renaming")(refused.error))?;
    flushed(path)
}

fn flushed(path: &Path) -> Result<(), PublishError> {
    flush_folder_of(path).map_err(failed("flushing its folder to disk"))
}

/// How the name of a temporary file for `path` begins; [`RANDOM_BYTES`] letters and digits and
/// [`TEMP_SUFFIX`] follow.
fn temp_prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(TEMP_PREFIX);
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

/// The name of the file that a temporary file of this name is written for.
fn written_for(temporary: &[u8]) -> Option<&[u8]> {
    let name = temporary.strip_prefix(TEMP_PREFIX.as_bytes())?;
    let name = name.strip_suffix(TEMP_SUFFIX.as_bytes())?;
    let (name, random) = name.split_at_checked(name.len().checked_sub(RANDOM_BYTES)?)?;
    let name = name.strip_suffix(b".")?;
    random.iter().all(u8::is_ascii_alphanumeric).then_some(name)
}

pub(super) fn failed(step: &'static str) -> impl FnOnce(io::Error) -> PublishError {
    move |error| PublishError { step, error }
}

impl From<PublishError> for io::Error {
    fn from(error: PublishError) -> Self {
        Self::new(error.error.kind(), error)
    }
}

const TEMP_PREFIX: &str = ".";
const RANDOM_BYTES: usize = 6;
const TEMP_SUFFIX: &str = ".tmp";
/// No writer takes so long, so the file's writer is gone.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);
/// Keeps [`delete_leftovers`] fast in a folder of any size; in a larger one, leftovers may stay.
const MAX_FILES_SCANNED: usize = 10_000;
/// Names below these are open files, which the process that started this one still uses.
const OPEN_FILES: [&str; 4] = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_file_replaces_the_old_one_and_a_new_one_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("made").join("file");
        publish(&path, b"one").expect("published");
        publish(&path, b"two").expect("published");
        assert!(!publish_new(&path, b"three").expect("the file exists"));
        assert_eq!(fs::read(&path).expect("read"), b"two");
        assert_eq!(fs::read_dir(folder_of(&path)).expect("a folder").count(), 1);
    }

    #[test]
    fn an_output_can_be_written_where_its_folders_can_be_created() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("made").join("at need").join("file");
        check_output(&path).expect("can be created");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        write_output(&path, b"one").expect("written");
        let below_file = path.join("no folder").join("file");
        check_output(&below_file).expect_err("no folder");
        write_output(&below_file, b"two").expect_err("no folder");
        check_output(Path::new("no such folder/file")).expect("can be created");
    }

    #[cfg(unix)]
    #[test]
    fn another_group_gets_the_permissions_of_everyone() {
        for (old, same, other) in
            [(0o100_640, 0o640, 0o600), (0o664, 0o664, 0o644), (0o4771, 0o771, 0o711)]
        {
            assert_eq!((kept_mode(old, true), kept_mode(old, false)), (same, other));
        }
    }

    #[test]
    fn only_old_temporary_files_are_deleted() {
        let folder = tempfile::tempdir().expect("a folder");
        let create = |name: &str, age: i32| {
            let file = File::create(folder.path().join(name)).expect("created");
            let hours = Duration::from_secs(3600) * age.unsigned_abs();
            let now = SystemTime::now();
            let time = if age < 0 { now + hours } else { now - hours };
            file.set_modified(time).expect("its time");
        };
        for (name, age) in [
            (".a.00000a.tmp", 3),
            (".a.00000b.tmp", 1),
            (".a.3", 3),
            ("a.tmp", 3),
            (".b.00000a.tmp", 3),
            (".a.1.tmp", 3),
            (".a.backups.tmp", 3),
            (".a.back-1.tmp", 3),
            (".00000a.tmp", 3),
        ] {
            create(name, age);
        }
        create(".a.00000d.tmp", -3);
        create(".a.b.00000e.tmp", 1);
        let others =
            [".00000a.tmp", ".a.1.tmp", ".a.3", ".a.back-1.tmp", ".a.backups.tmp", "a.tmp"];
        let left = || {
            let files = fs::read_dir(folder.path()).expect("a folder").flatten();
            let names = files.map(|file| file.file_name().into_string().expect("text"));
            let mut names: Vec<_> = names.filter(|name| !others.contains(&name.as_str())).collect();
            names.sort();
            names
        };
        let (two_hours, is_a) = (Duration::from_secs(2 * 3600), |name: &[u8]| name == b"a");
        delete_leftovers(folder.path(), is_a, two_hours);
        let young = [".a.00000b.tmp", ".a.00000d.tmp", ".a.b.00000e.tmp", ".b.00000a.tmp"];
        assert_eq!(left(), young);
        delete_leftovers(folder.path(), is_a, Duration::ZERO);
        assert_eq!(left(), [".a.b.00000e.tmp", ".b.00000a.tmp"]);
        delete_leftovers(folder.path(), |_| true, two_hours);
        assert_eq!(left(), [".a.b.00000e.tmp"]);
        assert!(others.iter().all(|name| folder.path().join(name).exists()));
    }
}
