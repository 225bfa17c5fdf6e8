//! Replaces files atomically.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;

use crate::error::ReadError;
use crate::folder::{create_folder, create_with_mode, flush_folder_of, folder_of, resolve_links};
use crate::kind::{FileKind, file_kind};

/// Why a file was not published.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {error}")]
pub struct PublishError {
    /// The step that failed, for example `creating its folder`.
    pub step: &'static str,
    /// The system's error.
    #[source]
    pub error: io::Error,
}

/// A replaced file has another owner or group, because this user may not set the old one. A new group gets
/// the permissions of everyone.
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
/// Readers see the old file or the new one, also after a crash or a power failure: the new file is written
/// beside the old one, flushed to disk, and renamed. It keeps the permissions, the owner and the group of the
/// old file; a change of owner or group is returned. Access control lists and hard links are not kept.
///
/// A link remains: its target is replaced or created, in an existing folder. Links of other users than root
/// are not followed.
///
/// # Errors
///
/// [`PublishError`], also for a pipe or device at `path`. The old file is then unchanged, unless the step is
/// `flushing its folder to disk`.
pub fn publish(path: &Path, contents: &[u8]) -> Result<Option<OwnerChange>, PublishError> {
    let end = resolve_links(path).map_err(failed("following its link"))?;
    let old = match fs::symlink_metadata(&end) {
        Ok(old) if !old.is_file() => {
            return Err(failed("replacing it")(ReadError::NotRegular.into()));
        }
        old => old.ok(),
    };
    if end == path {
        create_folder(folder_of(path)).map_err(failed("creating its folder"))?;
    }
    replace(&end, contents, old.as_ref().map_or(Access::Umask, Access::Of))
}

/// Like [`publish`], with the mode 0600 for the file and 0700 for new folders, whatever the umask. Replaces a
/// link.
///
/// # Errors
///
/// As [`publish`].
pub fn publish_private(path: &Path, contents: &[u8]) -> Result<(), PublishError> {
    create_with_mode(folder_of(path), 0o700).map_err(failed("creating its folder"))?;
    replace(path, contents, Access::User).map(drop)
}

/// Like [`publish`], but keeps an existing file or link. Returns whether the file was written.
///
/// # Errors
///
/// As [`publish`].
pub fn publish_new(path: &Path, contents: &[u8]) -> Result<bool, PublishError> {
    create_folder(folder_of(path)).map_err(failed("creating its folder"))?;
    persist_new(path, contents)
}

/// Like [`publish_new`], in an existing folder.
pub(crate) fn persist_new(path: &Path, contents: &[u8]) -> Result<bool, PublishError> {
    match written(path, contents, Access::Umask)?.0.persist_noclobber(path) {
        Ok(_) => flushed(path).map(|()| true),
        Err(refused) if refused.error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(refused) => Err(failed("renaming")(refused.error)),
    }
}

/// Replaces or creates the file at `path`.
pub(crate) fn replace(
    path: &Path,
    contents: &[u8],
    access: Access<'_>,
) -> Result<Option<OwnerChange>, PublishError> {
    let (file, change) = written(path, contents, access)?;
    file.persist(path).map_err(|refused| failed("renaming")(refused.error))?;
    flushed(path).map(|()| change)
}

/// Writes a program's output to the file that its user named: like [`publish`], but also to a pipe, a device
/// or an open file, for example `/dev/stdout`. Deletes the temporary files that killed processes left for this
/// file more than an hour ago.
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
/// [`PublishError`] if the nearest existing folder is not writable, or if `path` is a folder, a socket or a
/// block device.
pub fn check_output(path: &Path) -> Result<(), PublishError> {
    if is_stream(path).map_err(failed("replacing it"))? {
        // Opening and closing a pipe would end its reader.
        return Ok(());
    }
    let end = resolve_links(path).map_err(failed("following its link"))?;
    let mut folder = folder_of(&end);
    // `publish` does not create the folder of a link's target.
    if end == path {
        let is_missing = |error: io::Error| error.kind() == ErrorKind::NotFound;
        let is_there = |folder: &&Path| !fs::symlink_metadata(folder).is_err_and(is_missing);
        folder = folder.ancestors().find(is_there).unwrap_or(Path::new("."));
    }
    let file = tempfile::tempfile_in(folder);
    file.map(drop).map_err(failed("creating a temporary file"))
}

/// Deletes the temporary files that killed processes left in `folder`, if they are older than `age` and
/// `is_wanted` accepts the name of the final file. Ignores errors.
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

/// Whether a path leads to a pipe, a device or an open file, which cannot be replaced.
fn is_stream(path: &Path) -> io::Result<bool> {
    let is_open = OPEN_FILES.iter().any(|folder| path.starts_with(folder));
    Ok(is_open || file_kind(&resolve_links(path)?)? == FileKind::Stream)
}

/// The permissions of a new file.
#[derive(Clone, Copy)]
pub(crate) enum Access<'o> {
    /// As the umask of the process says.
    Umask,
    /// For the user only.
    User,
    /// As an old file, with its owner and group.
    Of(&'o Metadata),
}

/// A temporary file beside `path` with these contents, flushed to disk, and the change of owner or group that could not
/// be avoided.
fn written(
    path: &Path,
    contents: &[u8],
    access: Access<'_>,
) -> Result<(NamedTempFile, Option<OwnerChange>), PublishError> {
    let mut file = temporary(path, access)?;
    file.write_all(contents).map_err(failed("writing a temporary file"))?;
    // Before renaming: otherwise a power failure could leave an empty file.
    file.as_file().sync_all().map_err(failed("flushing to disk"))?;
    let change = match access {
        Access::Of(old) => {
            keep_access(file.as_file(), old).map_err(failed("keeping its access"))?
        }
        Access::Umask | Access::User => None,
    };
    Ok((file, change))
}

/// An empty temporary file beside `path`.
pub(crate) fn temporary(path: &Path, access: Access<'_>) -> Result<NamedTempFile, PublishError> {
    let mut prefix = OsString::from(TEMP_PREFIX);
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).rand_bytes(RANDOM_BYTES).suffix(TEMP_SUFFIX);
    #[cfg(unix)]
    if matches!(access, Access::Umask) {
        use std::os::unix::fs::PermissionsExt;
        // The default of the builder is 0600.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder_of(path)).map_err(failed("creating a temporary file"))
}

/// Copies owner, group and permissions of the old file. Returns the change of owner or group that could not be avoided.
#[cfg(unix)]
fn keep_access(file: &File, old: &Metadata) -> io::Result<Option<OwnerChange>> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        // The user may be allowed to set only one of them.
        let _ = fchown(file, None, Some(old.gid()));
        let _ = fchown(file, Some(old.uid()), None);
    }
    let new = file.metadata()?;
    let mode = kept_mode(old.mode(), new.gid() == old.gid());
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    let (old, new) = ((old.uid(), old.gid()), (new.uid(), new.gid()));
    Ok((old != new).then_some(OwnerChange { old, new }))
}

/// The permissions of a new file: another group gets the permissions of everyone.
#[cfg(unix)]
const fn kept_mode(old: u32, is_same_group: bool) -> u32 {
    let mode = old & 0o777;
    if is_same_group { mode } else { (mode & !0o070) | ((mode & 0o007) << 3) }
}

#[cfg(not(unix))]
fn keep_access(_: &File, _: &Metadata) -> io::Result<Option<OwnerChange>> {
    Ok(None)
}

pub(crate) fn flushed(path: &Path) -> Result<(), PublishError> {
    flush_folder_of(path).map_err(failed("flushing its folder to disk"))
}

/// The name of the final file that belongs to a temporary file of [`written`].
fn written_for(temporary: &[u8]) -> Option<&[u8]> {
    let name = temporary.strip_prefix(TEMP_PREFIX.as_bytes())?;
    let name = name.strip_suffix(TEMP_SUFFIX.as_bytes())?;
    let (name, random) = name.split_at_checked(name.len().checked_sub(RANDOM_BYTES)?)?;
    let name = name.strip_suffix(b".")?;
    random.iter().all(u8::is_ascii_alphanumeric).then_some(name)
}

pub(crate) fn failed(step: &'static str) -> impl FnOnce(io::Error) -> PublishError {
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
/// Longer than any writer takes.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);
/// Bounds the time of [`delete_leftovers`] in a large folder.
const MAX_FILES_SCANNED: usize = 10_000;
/// Names below these are open files of this process.
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
    fn check_output_accepts_folders_that_can_be_created() {
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
    fn a_new_group_gets_the_permissions_of_everyone() {
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
