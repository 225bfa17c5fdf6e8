//! Creates folders, resolves links, and finds the cache folder of the user.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;

/// Creates a folder and its parents, and flushes them to disk.
///
/// # Errors
///
/// The system's error.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    create_with_mode(folder, 0o777)
}

/// Like [`create_folder`], with a mode on Unix. The umask takes bits away from it.
#[cfg_attr(not(unix), allow(unused_mut, unused_variables, reason = "no modes"))]
pub(crate) fn create_with_mode(folder: &Path, mode: u32) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, mode);
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    for new in missing.into_iter().rev() {
        match builder.create(new) {
            Ok(()) => flush_folder_of(new)?,
            // Another process created it first.
            Err(_) if new.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Flushes the folder that holds `path` to disk.
pub(crate) fn flush_folder_of(path: &Path) -> io::Result<()> {
    // Windows opens no folder as a file.
    if cfg!(not(unix)) {
        return Ok(());
    }
    match File::open(folder_of(path)).and_then(|folder| folder.sync_all()) {
        Err(error) if NOTHING_TO_FLUSH.contains(&error.kind()) => Ok(()),
        flushed => flushed,
    }
}

/// The folder that holds `path`: `.` for a name alone.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Follows the links at `path`, up to a missing file; `path` itself if it is not a link.
///
/// # Errors
///
/// The system's error, and [`ErrorKind::InvalidInput`] for a link of another user than root, and for a
/// circle of links.
pub fn resolve_links(path: &Path) -> io::Result<PathBuf> {
    let mut end = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(link) = fs::read_link(&end) else { return Ok(end) };
        #[cfg(unix)]
        crate::unix::check_link(&end)?;
        // The kernel may refuse to follow a link in a sticky folder such as /tmp.
        match fs::metadata(&end) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => end = folder_of(&end).join(link),
        }
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "too many links"))
}

/// A folder for files that should last: as [`user_cache_folder`], in the data folder of the user (`$XDG_DATA_HOME` or
/// `~/.local/share` on Unix, `%APPDATA%` on Windows).
pub fn user_data_folder(variable: &str, folder: &str) -> Option<PathBuf> {
    let data = || Some(etcetera::choose_base_strategy().ok()?.data_dir());
    user_folder(std::env::var_os(variable), data, folder)
}

/// A folder for cached files: the value of the environment variable `variable`, or else `folder` in the
/// cache folder of the user (`$XDG_CACHE_HOME` or `~/.cache` on Unix, `%LOCALAPPDATA%` on Windows).
///
/// `None` if the variable is `off`, or the cache folder is unknown or not an absolute path.
///
/// ```
/// let folder = gridguard_files::user_cache_folder("MY_PROGRAM_CACHE", "my-program/kernels");
/// assert!(folder.is_none_or(|folder| folder.ends_with("my-program/kernels")));
/// ```
pub fn user_cache_folder(variable: &str, folder: &str) -> Option<PathBuf> {
    let caches = || Some(etcetera::choose_base_strategy().ok()?.cache_dir());
    user_folder(std::env::var_os(variable), caches, folder)
}

fn user_folder(
    variable: Option<OsString>,
    usual: impl FnOnce() -> Option<PathBuf>,
    folder: &str,
) -> Option<PathBuf> {
    match variable.filter(|value| !value.is_empty()) {
        Some(value) if value == "off" => None,
        Some(value) => Some(value.into()),
        None => {
            let usual = usual().filter(|folder| folder.is_absolute())?;
            Some(usual.join(folder))
        }
    }
}

/// A folder that can be written but not listed cannot be opened. Some network file systems write names synchronously.
const NOTHING_TO_FLUSH: [ErrorKind; 3] =
    [ErrorKind::PermissionDenied, ErrorKind::InvalidInput, ErrorKind::Unsupported];
/// The limit of Linux.
const MAX_LINKS: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_link_of_another_user_is_not_followed() {
        use std::os::unix::fs::{lchown, symlink};

        let folder = tempfile::tempdir().expect("a folder");
        let [link, own] = ["link", "own"].map(|name| folder.path().join(name));
        symlink("end", &link).expect("a link");
        symlink("link", &own).expect("a link");
        assert_eq!(resolve_links(&own).expect("followed"), folder.path().join("end"));
        // Only root can change the owner.
        match lchown(&link, Some(4711), None) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied),
            Ok(()) => {
                let refused = resolve_links(&own).expect_err("another user's link").to_string();
                assert!(refused.contains("belongs to user 4711"), "{refused}");
            }
        }
    }

    #[test]
    fn the_variable_overrides_the_cache_folder_and_off_disables_it() {
        let folder = |value: &str, caches: &str| {
            user_folder(Some(value.into()), || Some(caches.into()), "gridguard/profiles")
        };
        assert_eq!(folder("here", "/c"), Some("here".into()));
        assert_eq!(folder("", "/c"), Some("/c/gridguard/profiles".into()));
        assert_eq!(folder("", "relative"), None);
        assert_eq!(folder("off", "/c"), None);
        assert_eq!(user_folder(None, || None, "gridguard/profiles"), None);
    }
}
