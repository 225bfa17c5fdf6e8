//! Checks that only the user or root can have written a file.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Distrust, ReadError};

/// Opens the file at `path`, which is in `folder`.
pub(crate) fn open_trusted(folder: &Path, path: &Path) -> Result<File, ReadError> {
    // `openat` on the checked folder: nobody can replace it in between.
    let folder = open_trusted_folder(folder)?;
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

pub(crate) fn open_trusted_folder(folder: &Path) -> Result<File, ReadError> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty()).map_err(io::Error::from)?;
    let opened = File::from(opened);
    let metadata = opened.metadata()?;
    check(folder, metadata.uid(), metadata.mode(), user())?;
    Ok(opened)
}

/// Checks that a link belongs to the user or root.
pub(crate) fn check_link(link: &Path) -> io::Result<()> {
    // The mode of a link has no meaning.
    let owner = fs::symlink_metadata(link)?.uid();
    check(link, owner, 0, user()).map_err(|why| io::Error::new(ErrorKind::InvalidInput, why))
}

/// The rule that OpenSSH applies to its keys.
fn check(path: &Path, owner: u32, mode: u32, user: u32) -> Result<(), Distrust> {
    let path = || path.to_owned();
    if owner != user && owner != ROOT {
        return Err(Distrust::Owner { path: path(), owner, user });
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(Distrust::Writable { path: path(), mode: mode & MODE_BITS });
    }
    Ok(())
}

/// The effective user of this process.
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

const ROOT: u32 = 0;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const MODE_BITS: u32 = 0o7777;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_file_of_the_user_or_root_that_nobody_else_can_write_is_trusted() {
        let path = Path::new("/p");
        for (owner, mode, user) in [(7, 0o600, 7), (0, 0o644, 7), (0, 0o755, 0), (7, 0o4711, 7)] {
            assert_eq!(check(path, owner, mode, user), Ok(()));
        }
        let path = PathBuf::from(path);
        for (owner, user) in [(7, 8), (7, 0)] {
            let expected = Distrust::Owner { path: path.clone(), owner, user };
            assert_eq!(check(&path, owner, 0o600, user), Err(expected));
        }
        for mode in [0o620, 0o602, 0o1777, 0o2775, 0o666] {
            let expected = Distrust::Writable { path: path.clone(), mode };
            assert_eq!(check(&path, 7, 0o100_000 | mode, 7), Err(expected));
        }
    }
}
