//! Checks that only the user or root can have written a file.

#[cfg(unix)]
use std::fs;
#[cfg(unix)]
use std::io::{self, ErrorKind};
#[cfg(unix)]
use std::path::Path;
use std::path::PathBuf;

/// Why a file or its folder is not trusted: another user than root may have written it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// It is a link, which is not followed.
    #[error("{} is a link: replace it by the file", path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// It belongs to another user.
    #[error("{} belongs to user {owner}: only files of root and of user {user}, who runs this, are trusted", path.display())]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// Its group or everyone can write to it. The sticky bit of a folder makes no difference.
    #[error("{} has the mode {mode:04o}, so that others can write to it: run chmod go-w on it", path.display())]
    Writable {
        /// The file or folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

/// Checks that a link belongs to the user or root.
#[cfg(unix)]
pub(crate) fn check_link(link: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;

    // The mode of a link has no meaning.
    let owner = fs::symlink_metadata(link)?.uid();
    check(link, owner, 0, user()).map_err(|why| io::Error::new(ErrorKind::InvalidInput, why))
}

/// The rule that OpenSSH applies to its keys.
#[cfg(unix)]
pub(crate) fn check(path: &Path, owner: u32, mode: u32, user: u32) -> Result<(), Distrust> {
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
#[cfg(unix)]
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(unix)]
const ROOT: u32 = 0;
#[cfg(unix)]
const WRITABLE_BY_OTHERS: u32 = 0o022;
#[cfg(unix)]
const MODE_BITS: u32 = 0o7777;

#[cfg(unix)]
#[cfg(test)]
mod tests {
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
