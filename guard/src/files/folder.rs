//! Folders and links.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;

/// Creates a folder and those that it is in, so that they survive a power failure.
///
/// # Errors
///
/// The system's error.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    create_with(folder, &fs::DirBuilder::new())
}

/// As [`create_folder`], for the user alone: folders that are created have the mode 0700.
pub(super) fn create_private_folder(folder: &Path) -> io::Result<()> {
    #[cfg_attr(not(unix), allow(unused_mut, reason = "no modes"))]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    create_with(folder, &builder)
}

fn create_with(folder: &Path, builder: &fs::DirBuilder) -> io::Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    for new in missing.into_iter().rev() {
        match builder.create(new) {
            Ok(()) => flush_folder_of(new)?,
            // Another process was faster.
            Err(_) if new.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the names in the folder of `path` to disk.
pub(super) fn flush_folder_of(path: &Path) -> io::Result<()> {
    // Elsewhere a folder cannot be opened as a file.
    if cfg!(unix) {
        match File::open(folder_of(path)) {
            // The folder may be written but not listed: only opening it is not allowed.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            folder => match folder?.sync_all() {
                // Some network file systems write names at once, and have nothing to flush.
                Err(error) if NOTHING_TO_FLUSH.contains(&error.kind()) => {}
                flushed => flushed?,
            },
        }
    }
    Ok(())
}

/// The folder that holds `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Where the links at `path` lead, even if nothing is there; `path` itself if it is no link.
///
/// # Errors
///
/// The system's error, and [`ErrorKind::InvalidInput`] for a link that another user than root or this one
/// may have planted, and for one that leads back to itself.
pub fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut end = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(link) = fs::read_link(&end) else { return Ok(end) };
        #[cfg(unix)]
        super::trust::check_link(&end)?;
        // The system decides whether the link may be followed; in /tmp not every one may.
        match fs::metadata(&end) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => end = folder_of(&end).join(link),
        }
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "too many links"))
}

/// A folder for a user's files: the value of `variable` if it is set, else `gridguard/NAME` in the
/// user's cache folder (`$XDG_CACHE_HOME` or `~/.cache` on Unix, `%LOCALAPPDATA%` on Windows).
///
/// `None` if the variable is `off`, or the cache folder is unknown or not an absolute path.
#[must_use]
pub fn user_cache_folder(variable: &str, name: &str) -> Option<PathBuf> {
    let caches = || Some(etcetera::choose_base_strategy().ok()?.cache_dir());
    user_folder(std::env::var_os(variable), caches, name)
}

fn user_folder(
    variable: Option<OsString>,
    caches: impl FnOnce() -> Option<PathBuf>,
    name: &str,
) -> Option<PathBuf> {
    match variable.filter(|value| !value.is_empty()) {
        Some(value) if value == "off" => None,
        Some(folder) => Some(folder.into()),
        None => {
            let caches = caches().filter(|folder| folder.is_absolute())?;
            Some(caches.join("gridguard").join(name))
        }
    }
}

const NOTHING_TO_FLUSH: [ErrorKind; 2] = [ErrorKind::InvalidInput, ErrorKind::Unsupported];
/// As many as Linux follows.
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
        assert_eq!(end_of_links(&own).expect("followed"), folder.path().join("end"));
        // Only root can give files away.
        match lchown(&link, Some(4711), None) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied),
            Ok(()) => {
                let refused = end_of_links(&own).expect_err("another user's link").to_string();
                assert!(refused.contains("belongs to user 4711"), "{refused}");
            }
        }
    }

    #[test]
    fn the_variable_overrides_the_cache_folder_and_off_disables_it() {
        let folder = |value: &str, caches: &str| {
            user_folder(Some(value.into()), || Some(caches.into()), "profiles")
        };
        assert_eq!(folder("here", "/c"), Some("here".into()));
        assert_eq!(folder("", "/c"), Some("/c/gridguard/profiles".into()));
        assert_eq!(folder("", "relative"), None);
        assert_eq!(folder("off", "/c"), None);
        assert_eq!(user_folder(None, || None, "profiles"), None);
    }
}
