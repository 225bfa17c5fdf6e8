//! Reads files up to a limit, or only files that others cannot have written.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::open::{NOT_REGULAR, open_at_once};
use crate::trust::Distrust;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is a folder, a pipe or a device.
    #[error("{NOT_REGULAR}")]
    NotRegular,
    /// It is larger than the caller's limit.
    #[error("it has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Another user may have written it.
    #[error(transparent)]
    Untrusted(#[from] Distrust),
    /// An error of the operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens a regular file for reading. Follows links, and does not wait for the writer of a pipe.
///
/// # Errors
///
/// [`ReadError::NotRegular`] and [`ReadError::Io`].
pub fn open(path: &Path) -> Result<File, ReadError> {
    // Opening a device may have an effect.
    if !fs::metadata(path)?.is_file() {
        return Err(ReadError::NotRegular);
    }
    open_at_once(path, File::options().read(true), false)?.ok_or(ReadError::NotRegular)
}

/// Reads a file of at most `limit` bytes; `None` if there is no file.
///
/// # Errors
///
/// [`ReadError`] other than [`ReadError::Untrusted`].
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ReadError> {
    found(open(path).and_then(|file| read_all(&file, limit)))
}

/// Like [`read`], if the file and its folder belong to the user or root and nobody else can write to
/// them. Does not follow a link at `path`.
///
/// A user who can rename the parent folders can only substitute a folder that passes the same checks.
/// Outside Unix, the same as [`read`].
///
/// # Errors
///
/// [`ReadError`].
#[cfg(unix)]
pub fn read_trusted(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ReadError> {
    found(unix::open_trusted(path).and_then(|file| read_all(&file, limit)))
}

/// Like [`read`].
#[cfg(not(unix))]
pub fn read_trusted(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ReadError> {
    read(path, limit)
}

/// Checks that a folder belongs to the user or root and that nobody else can write to it. A missing
/// folder passes.
///
/// # Errors
///
/// [`ReadError::Untrusted`] and [`ReadError::Io`].
pub fn check_folder(folder: &Path) -> Result<(), ReadError> {
    #[cfg(unix)]
    found(unix::open_trusted_folder(folder))?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

pub(crate) fn read_all(file: &File, limit: u64) -> Result<Vec<u8>, ReadError> {
    let bytes = file.metadata()?.len();
    if bytes > limit {
        return Err(ReadError::TooLarge { bytes, limit });
    }
    let mut contents = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    // The file may have grown since.
    let bytes = file.take(limit.saturating_add(1)).read_to_end(&mut contents)?;
    match u64::try_from(bytes) {
        Ok(bytes) if bytes > limit => Err(ReadError::TooLarge { bytes, limit }),
        _ => Ok(contents),
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error,
            other => Self::new(ErrorKind::InvalidInput, other),
        }
    }
}

fn found<T>(result: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match result {
        Err(ReadError::Io(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{Mode, OFlags};
    use rustix::io::Errno;

    use super::{Distrust, File, Path, ReadError, io};
    use crate::folder::folder_of;
    use crate::trust::{check, user};

    pub(super) fn open_trusted(path: &Path) -> Result<File, ReadError> {
        // `openat` on the checked folder: nobody can replace it in between.
        let folder = open_trusted_folder(folder_of(path))?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let name = path.file_name().unwrap_or_default();
        let file = match rustix::fs::openat(&folder, name, flags, Mode::empty()) {
            Err(Errno::LOOP) => return Err(Distrust::Link { path: path.to_owned() }.into()),
            // A socket.
            Err(Errno::NXIO) => return Err(ReadError::NotRegular),
            opened => File::from(opened.map_err(io::Error::from)?),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ReadError::NotRegular);
        }
        check(path, metadata.uid(), metadata.mode(), user())?;
        Ok(file)
    }

    pub(super) fn open_trusted_folder(folder: &Path) -> Result<File, ReadError> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(folder, flags, Mode::empty()).map_err(io::Error::from)?;
        let opened = File::from(opened);
        let metadata = opened.metadata()?;
        check(folder, metadata.uid(), metadata.mode(), user())?;
        Ok(opened)
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::process::Command;

    use super::*;

    const LIMIT: u64 = 100;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    #[track_caller]
    fn distrusted(path: &Path) -> Distrust {
        match read_trusted(path, LIMIT).expect_err("not to be trusted") {
            ReadError::Untrusted(why) => why,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn owner_and_mode_of_file_and_folder_are_checked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        assert!(read_trusted(&path, LIMIT).expect("no file").is_none());
        assert!(read_trusted(&path.join("no folder"), LIMIT).expect("none").is_none());
        fs::write(&path, "text").expect("written");
        let read = || read_trusted(&path, LIMIT).expect("trusted").expect("there");
        set_mode(&path, 0o644);
        assert_eq!(read(), b"text");
        for mode in [0o664, 0o646] {
            set_mode(&path, mode);
            assert_eq!(distrusted(&path), Distrust::Writable { path: path.clone(), mode });
        }
        set_mode(&path, 0o600);
        for mode in [0o770, 0o777, 0o1777] {
            set_mode(folder.path(), mode);
            let expected = Distrust::Writable { path: folder.path().to_owned(), mode };
            assert_eq!(distrusted(&path), expected);
            assert!(matches!(
                check_folder(folder.path()),
                Err(ReadError::Untrusted(why)) if why == expected
            ));
        }
        set_mode(folder.path(), 0o755);
        assert_eq!(read(), b"text");
        // Only root can change the owner.
        match chown(&path, Some(4711), None) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied),
            Ok(()) => {
                let user = rustix::process::geteuid().as_raw();
                let expected = Distrust::Owner { path: path.clone(), owner: 4711, user };
                assert_eq!(distrusted(&path), expected);
            }
        }
    }

    #[test]
    fn links_and_pipes_are_rejected_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, link, pipe] = ["file", "link", "pipe"].map(|name| folder.path().join(name));
        fs::write(&path, "text").expect("written");
        symlink(&path, &link).expect("a link");
        assert_eq!(distrusted(&link), Distrust::Link { path: link.clone() });
        assert_eq!(read(&link, LIMIT).expect("followed").expect("there"), b"text");
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("runs").success());
        let below = folder.path().join("below");
        fs::create_dir(&below).expect("made");
        for path in [&pipe, &below] {
            assert!(matches!(read_trusted(path, LIMIT), Err(ReadError::NotRegular)));
            assert!(matches!(read(path, LIMIT), Err(ReadError::NotRegular)));
        }
        let null = Path::new("/dev/null");
        assert!(matches!(read(null, LIMIT), Err(ReadError::NotRegular)));
    }

    #[test]
    fn a_file_larger_than_the_limit_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        File::create(&path).expect("made").set_len(1 << 40).expect("sparse");
        for result in [read(&path, LIMIT), read_trusted(&path, LIMIT)] {
            assert!(
                matches!(result, Err(ReadError::TooLarge { bytes, limit: LIMIT }) if bytes == 1 << 40)
            );
        }
        fs::write(&path, [b'x'; 100]).expect("written");
        assert_eq!(read(&path, LIMIT).expect("within").expect("there").len(), 100);
    }
}
