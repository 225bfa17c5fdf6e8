//! Writes a file of any size, which appears whole or not at all.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::publish::{Access, PublishError, failed, flushed, temporary};

/// A file with the mode 0600 that has no name until [`Self::publish`].
///
/// If the process ends before, nothing remains. On file systems without unnamed files, such as NFS, a temporary
/// file may remain, which [`delete_leftovers`](crate::delete_leftovers) deletes.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    file: File,
    /// The name of a temporary file.
    temporary: Option<TempPath>,
}

impl Draft {
    /// Begins the file `path`, in an existing folder.
    ///
    /// # Errors
    ///
    /// [`PublishError`] if no file can be created there.
    pub fn new(path: &Path) -> Result<Self, PublishError> {
        let path = path.to_owned();
        #[cfg(target_os = "linux")]
        if let Some(file) = unnamed(&path) {
            return Ok(Self { path, file, temporary: None });
        }
        let (file, temporary) = temporary(&path, Access::User)?.into_parts();
        Ok(Self { path, file, temporary: Some(temporary) })
    }

    /// Flushes the file to disk and gives it its name. Keeps an existing file or link. Returns whether the file has
    /// its name.
    ///
    /// # Errors
    ///
    /// [`PublishError`] if flushing or naming fails.
    pub fn publish(self) -> Result<bool, PublishError> {
        let Self { path, file, temporary } = self;
        file.sync_all().map_err(failed("flushing to disk"))?;
        let named = match temporary {
            Some(temporary) => temporary.persist_noclobber(&path).map_err(|refused| refused.error),
            None => name(&file, &path),
        };
        match named {
            Ok(()) => flushed(&path).map(|()| true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(failed("naming it")(error)),
        }
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file without a name, if the file system has such files.
#[cfg(target_os = "linux")]
fn unnamed(path: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags, open};

    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    open(crate::folder::folder_of(path), flags, mode).ok().map(File::from)
}

#[cfg(target_os = "linux")]
fn name(file: &File, path: &Path) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    use rustix::fs::{AtFlags, CWD, linkat};

    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(not(target_os = "linux"))]
fn name(_: &File, _: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_draft_appears_when_it_is_published_and_replaces_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let written = |path: &Path, text: &[u8]| {
            let mut draft = Draft::new(path).expect("begun");
            draft.write_all(text).expect("written");
            draft
        };
        drop(written(&path, b"dropped"));
        let (first, second) = (written(&path, b"first"), written(&path, b"second"));
        assert!(!path.exists());
        assert!(first.publish().expect("published"));
        assert!(!second.publish().expect("the file exists"));
        assert_eq!(fs::read(&path).expect("there"), b"first");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        Draft::new(&folder.path().join("no folder").join("file")).expect_err("no folder");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
}
