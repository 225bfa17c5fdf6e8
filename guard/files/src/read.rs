//! Reads files up to a limit, or only files that others cannot have written.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::error::ReadError;
use crate::kind::open_regular;
#[cfg(unix)]
use crate::{folder::folder_of, unix};

/// Opens a regular file for reading. Follows links, and does not wait for the writer of a pipe.
///
/// # Errors
///
/// [`ReadError::NotRegular`] and [`ReadError::Io`].
pub fn open(path: &Path) -> Result<File, ReadError> {
    open_regular(path, File::options().read(true), true)
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
pub fn read_trusted(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ReadError> {
    #[cfg(unix)]
    let file = unix::open_trusted(folder_of(path), path);
    #[cfg(not(unix))]
    let file = open(path);
    found(file.and_then(|file| read_all(&file, limit)))
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

/// The result; `None` if there is no file.
pub(crate) fn found<T>(result: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match result {
        Err(ReadError::Io(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::process::Command;

    use super::*;
    use crate::error::Distrust;

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
