//! The folder of a run with `--fix`, where each `ptxas` that the program starts keeps the PTX that it reads. The first
//! `ptxas` creates it, and the library deletes it when the program ends.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The path of a new folder. The program will have the number of this process.
pub(super) fn new_folder() -> io::Result<PathBuf> {
    let parent = std::path::absolute(env::temp_dir())?;
    delete_leftovers(&parent, LEFTOVER_AGE);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Ok(parent.join(format!("{PREFIX}{}-{now:x}", process::id())))
}

/// Deletes the folders of programs that did not end by `exit`.
fn delete_leftovers(parent: &Path, age: Duration) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let number = number.split('-').next().unwrap_or_default();
        let is_running = || number.is_empty() || Path::new("/proc").join(number).exists();
        let is_old = |folder: fs::Metadata| {
            let since = folder.modified().ok().and_then(|changed| changed.elapsed().ok());
            folder.is_dir() && folder.uid() == user && since.is_some_and(|since| since >= age)
        };
        if entry.metadata().is_ok_and(is_old) && !is_running() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

const PREFIX: &str = "gridguard-ptx-";
/// A container may have processes that `/proc` does not show here.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_folders_of_ended_programs_are_deleted() {
        let parent = tempfile::tempdir().unwrap();
        let own = format!("{PREFIX}{}-1", process::id());
        let (ended, other) = (format!("{PREFIX}4194305-1"), "gridguard-other".to_owned());
        for name in [&own, &ended, &other] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink(&other, parent.path().join(format!("{PREFIX}4194305-2")))
            .unwrap();
        let count = || fs::read_dir(parent.path()).unwrap().count();
        delete_leftovers(parent.path(), LEFTOVER_AGE);
        assert_eq!(count(), 4, "they are new");
        delete_leftovers(parent.path(), Duration::ZERO);
        assert!(count() == 3 && !parent.path().join(ended).exists());
    }
}
