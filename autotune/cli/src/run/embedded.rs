//! The library in this command. It is written to a folder of the user, below its digest, and compared at each use.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gridguard_files::{ReadError, publish_private, read_trusted, user_cache_folder};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;

use super::loader::{LIBRARY, check_path};
use crate::error::CommandError;

/// The library as `build.rs` compressed it; empty in builds without one.
const COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.lz4"));
/// Begins the name of the folder, so that two versions of the command use one each.
const DIGEST: &str = env!("GRIDGUARD_PRELOAD_DIGEST");

/// `None` if this build has no library.
pub(super) fn library() -> Option<Result<Vec<u8>, CommandError>> {
    let library =
        (!COMPRESSED.is_empty()).then(|| lz4_flex::decompress_size_prepended(COMPRESSED))?;
    Some(library.map_err(|error| {
        CommandError::failed(format_args!("this command is damaged: {LIBRARY}: {error}"))
    }))
}

/// Writes the library into the first folder that can have it.
pub(super) fn install(library: &[u8]) -> Result<PathBuf, CommandError> {
    let mut failures = Vec::new();
    for folder in folders() {
        match install_into(&folder.join(DIGEST), library) {
            Ok(path) => return Ok(path),
            Err(why) => failures.push(format!("{}: {why}", folder.display())),
        }
    }
    Err(CommandError::failed(format_args!(
        "{LIBRARY} cannot be written; set XDG_CACHE_HOME to a folder of yours, or name the library with \
         --library:\n  {}",
        failures.join("\n  ")
    )))
}

/// The folders for the library, best first: the user's cache, the folder of the login session, and one in /tmp.
fn folders() -> impl Iterator<Item = PathBuf> {
    let runtime =
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let own = format!("gridguard-{}", rustix::process::geteuid().as_raw());
    let cache = user_cache_folder("GRIDGUARD_PRELOAD_CACHE", "gridguard/preload");
    [cache, runtime.map(|folder| folder.join("gridguard")), Some(env::temp_dir().join(own))]
        .into_iter()
        .flatten()
}

/// Writes the library into `folder` unless it is there, and returns its path if nobody else can replace it.
fn install_into(folder: &Path, library: &[u8]) -> Result<PathBuf, String> {
    check_place(folder)?;
    let path = folder.join(LIBRARY);
    if !holds(&path, library)? {
        publish_private(&path, library).map_err(|error| error.to_string())?;
    }
    // Another user may have made the folder first, in a parent that everybody can write to, or may change a link to it.
    let folder = fs::canonicalize(folder).map_err(|error| error.to_string())?;
    check_place(&folder)?;
    let path = folder.join(LIBRARY);
    if holds(&path, library)? {
        Ok(path)
    } else {
        Err("another process replaces the library".to_owned())
    }
}

/// Whether the file is the library, and nobody else can have written it.
fn holds(path: &Path, library: &[u8]) -> Result<bool, String> {
    let limit = u64::try_from(library.len()).unwrap_or(u64::MAX);
    match read_trusted(path, limit) {
        Ok(found) => Ok(found.is_some_and(|found| found == library)),
        // Another file of the user, which is replaced.
        Err(ReadError::TooLarge { .. }) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

/// Refuses a folder that another user can replace by renaming a parent, or whose files may not be executed. Looks at
/// the nearest folder that exists.
fn check_place(folder: &Path) -> Result<(), String> {
    check_path(folder)?;
    let user = rustix::process::geteuid().as_raw();
    let Some(resolved) = folder.ancestors().find_map(|parent| fs::canonicalize(parent).ok()) else {
        return Err("has no parent that exists".to_owned());
    };
    for parent in resolved.ancestors() {
        let stated = fs::metadata(parent).map_err(|error| error.to_string())?;
        // In a folder with the sticky bit, others can rename only their own files.
        let is_writable = stated.mode() & 0o022 != 0 && stated.mode() & 0o1000 == 0;
        if is_writable || ![0, user].contains(&stated.uid()) {
            return Err(format!("another user can replace {}", parent.display()));
        }
    }
    match statvfs(&resolved) {
        Ok(stated) if stated.f_flag.contains(StatVfsMountFlags::NOEXEC) => {
            Err("is mounted without permission to execute (noexec)".to_owned())
        }
        Ok(_) | Err(Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const LIBRARY_BYTES: &[u8] = b"a library";

    #[test]
    fn a_library_is_written_once_and_restored_if_something_changed_it() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cache").join("digest");
        let path = install_into(&folder, LIBRARY_BYTES).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let written = fs::metadata(&path).unwrap().ino();
        assert_eq!(install_into(&folder, LIBRARY_BYTES).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), written, "not written again");
        for changed in [&b"another"[..], b"", b"a much longer library"] {
            fs::write(&path, changed).unwrap();
            install_into(&folder, LIBRARY_BYTES).unwrap();
            assert_eq!(fs::read(&path).unwrap(), LIBRARY_BYTES);
        }
    }

    #[test]
    fn folders_that_others_can_change_and_links_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let refused = |folder: &Path| install_into(folder, LIBRARY_BYTES).unwrap_err();
        let open = home.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&open.join("digest")).contains("another user can replace"));
        assert!(!open.join("digest").exists(), "nothing was written");
        let other = home.path().join("other");
        fs::write(&other, LIBRARY_BYTES).unwrap();
        let folder = home.path().join("links");
        fs::create_dir(&folder).unwrap();
        symlink(&other, folder.join(LIBRARY)).unwrap();
        assert!(refused(&folder).contains("is a link"), "{}", refused(&folder));
        // The loader gets the folder itself: the link may change.
        let (own, link) = (home.path().join("own"), home.path().join("link"));
        fs::create_dir(&own).unwrap();
        symlink(&own, &link).unwrap();
        assert_eq!(install_into(&link, LIBRARY_BYTES).unwrap(), own.join(LIBRARY));
        assert!(refused(&home.path().join("a b")).contains("space"));
        fs::write(home.path().join("file"), "").unwrap();
        assert!(install_into(&home.path().join("file/digest"), LIBRARY_BYTES).is_err());
        assert!(install_into(Path::new("/proc/gridguard"), LIBRARY_BYTES).is_err());
    }

    #[test]
    fn a_folder_that_another_user_prepared_is_refused() {
        let shared = tempfile::tempdir().unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let own = shared.path().join("gridguard-0");
        install_into(&own.join("digest"), LIBRARY_BYTES).unwrap();
        // Only root can give it away.
        if chown(&own, Some(4711), None).is_ok() {
            let refused = install_into(&own.join("digest"), LIBRARY_BYTES).unwrap_err();
            assert!(refused.contains("another user can replace"), "{refused}");
        }
    }
}
