//! Replaces files atomically, and finds the folder of a user's caches.
//!
//! ```
//! use gridguard::files::publish;
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! publish(&folder.join("results").join("times.txt"), b"1.5 us\n")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use etcetera::BaseStrategy;
use tempfile::NamedTempFile;

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

/// Replaces the file at `path`, or creates it and its folder.
///
/// Readers see the old file or the new one, never a part, also after a crash or a power failure: the
/// new file is written beside the old one, flushed to disk, and renamed. A link is replaced.
///
/// # Errors
///
/// [`PublishError`]; the old file is then unchanged.
pub fn publish(path: &Path, contents: &[u8]) -> Result<(), PublishError> {
    replace(path, written(path, contents, Access::Umask)?)
}

/// As [`publish`], but for the user alone, whatever the umask: the file has the mode 0600, and folders
/// that are created have 0700. On other systems than Unix as [`publish`].
///
/// # Errors
///
/// [`PublishError`]; the old file is then unchanged.
pub fn publish_private(path: &Path, contents: &[u8]) -> Result<(), PublishError> {
    replace(path, written(path, contents, Access::User)?)
}

/// As [`publish`], but leaves an existing file. Returns whether the new one was published.
///
/// # Errors
///
/// [`PublishError`].
pub fn publish_new(path: &Path, contents: &[u8]) -> Result<bool, PublishError> {
    match written(path, contents, Access::Umask)?.persist_noclobber(path) {
        Ok(_) => flush_folder(path).map(|()| true),
        Err(refused) if refused.error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(refused) => Err(failed("renaming")(refused.error)),
    }
}

/// Deletes the temporary files that killed processes left in `folder`, if they are older than `age`
/// and were written for `file`, or for any file if that is `None`.
///
/// Does its best: a file that cannot be deleted only costs disk space.
pub fn delete_leftovers(folder: &Path, file: Option<&Path>, age: Duration) {
    let wanted = file.map(|file| file.file_name().unwrap_or_default().as_encoded_bytes());
    let Ok(files) = fs::read_dir(folder) else { return };
    for file in files.take(MAX_FILES_SCANNED).flatten() {
        match written_for(file.file_name().as_encoded_bytes()) {
            Some(name) if wanted.is_none_or(|wanted| wanted == name) => {}
            _ => continue,
        }
        let written = file.metadata().and_then(|metadata| metadata.modified()).ok();
        let since = written.and_then(|written| SystemTime::now().duration_since(written).ok());
        if age.is_zero() || since.is_some_and(|since| since > age) {
            let _ = fs::remove_file(file.path());
        }
    }
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

/// Who may use a new file.
#[derive(Clone, Copy, PartialEq)]
enum Access {
    /// For whom the process's umask allows, as any new file.
    Umask,
    /// The user alone.
    User,
}

/// A temporary file beside `path` with these contents, flushed to disk.
#[cfg_attr(not(unix), allow(unused_mut, unused_variables, reason = "no modes"))]
fn written(path: &Path, contents: &[u8], access: Access) -> Result<NamedTempFile, PublishError> {
    let folder = folder_of(path);
    let (mut folders, prefix) = (fs::DirBuilder::new(), temp_prefix(path));
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(TEMP_SUFFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        if access == Access::User {
            folders.mode(0o700);
        } else {
            // By itself the builder creates files for the user alone.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
    }
    folders.recursive(true).create(folder).map_err(failed("creating its folder"))?;
    let mut file = builder.tempfile_in(folder).map_err(failed("creating a temporary file"))?;
    file.write_all(contents).map_err(failed("writing a temporary file"))?;
    // Before renaming: after a power failure the name must not lead to bytes never written.
    file.as_file().sync_all().map_err(failed("flushing to disk"))?;
    Ok(file)
}

fn replace(path: &Path, file: NamedTempFile) -> Result<(), PublishError> {
    file.persist(path).map_err(|refused| failed("renaming")(refused.error))?;
    flush_folder(path)
}

fn flush_folder(path: &Path) -> Result<(), PublishError> {
    // Elsewhere a folder cannot be opened as a file.
    if cfg!(unix) {
        let flushed = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
        flushed.map_err(failed("flushing its folder to disk"))?;
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

/// How the name of a temporary file for `path` begins; characters without a dot and
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
    name.get(..name.iter().rposition(|byte| *byte == b'.')?)
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> PublishError {
    move |error| PublishError { step, error }
}

impl From<PublishError> for io::Error {
    fn from(error: PublishError) -> Self {
        Self::new(error.error.kind(), error)
    }
}

const TEMP_PREFIX: &str = ".";
const TEMP_SUFFIX: &str = ".tmp";
/// Keeps [`delete_leftovers`] fast in a folder of any size; in a larger one, leftovers may stay.
const MAX_FILES_SCANNED: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

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
    fn only_old_temporary_files_are_deleted() {
        let folder = tempfile::tempdir().expect("a folder");
        let create = |name: &str, age: i32| {
            let file = File::create(folder.path().join(name)).expect("created");
            let hours = Duration::from_secs(3600) * age.unsigned_abs();
            let now = SystemTime::now();
            let time = if age < 0 { now + hours } else { now - hours };
            file.set_modified(time).expect("its time");
        };
        for (name, age) in
            [(".a.1.tmp", 3), (".a.2.tmp", 1), (".a.3", 3), ("a.tmp", 3), (".b.1.tmp", 3)]
        {
            create(name, age);
        }
        create(".a.4.tmp", -3);
        create(".a.b.5.tmp", 1);
        let left = || {
            let files = fs::read_dir(folder.path()).expect("a folder").flatten();
            let mut names: Vec<_> =
                files.map(|file| file.file_name().into_string().expect("text")).collect();
            names.sort();
            names
        };
        let file = folder.path().join("a");
        delete_leftovers(folder.path(), Some(&file), Duration::from_secs(2 * 3600));
        assert_eq!(left(), [".a.2.tmp", ".a.3", ".a.4.tmp", ".a.b.5.tmp", ".b.1.tmp", "a.tmp"]);
        delete_leftovers(folder.path(), Some(&file), Duration::ZERO);
        assert_eq!(left(), [".a.3", ".a.b.5.tmp", ".b.1.tmp", "a.tmp"]);
        delete_leftovers(folder.path(), None, Duration::from_secs(2 * 3600));
        assert_eq!(left(), [".a.3", ".a.b.5.tmp", "a.tmp"]);
    }
}
