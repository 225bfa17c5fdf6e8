//! Writes files without following links, and replaces them only if their contents are accepted.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::kind::open_regular;
use crate::lock::{is_at, try_lock};
use crate::publish::{Access, PublishError, failed, persist_new, replace};
use crate::read::{found, read_all};

/// Opens a regular file for appending, and creates it if there is none. Follows no link.
///
/// # Errors
///
/// The errors of [`file_kind`](crate::file_kind), and the system's.
pub fn append(path: &Path) -> io::Result<File> {
    Ok(open_regular(path, File::options().append(true).create(true), false)?)
}

/// Creates the file at `path`, or replaces it if `may_replace` accepts its contents of at most `limit` bytes.
/// Returns whether the file was written. Follows no link and creates no folder; otherwise like
/// [`publish`](fn@crate::publish).
///
/// If several processes replace one file, each sees the contents that the previous process has written.
///
/// # Errors
///
/// [`PublishError`], also if another process keeps the old file locked.
pub fn publish_if(
    path: &Path,
    contents: &[u8],
    limit: u64,
    may_replace: impl Fn(&[u8]) -> bool,
) -> Result<bool, PublishError> {
    let begun = Instant::now();
    loop {
        let old = found(open_regular(path, File::options().read(true), false));
        let Some(old) = old.map_err(|error| failed("opening it")(error.into()))? else {
            if persist_new(path, contents)? {
                return Ok(true);
            }
            // Another process created it first.
            continue;
        };
        if !read_all(&old, limit).is_ok_and(|text| may_replace(&text)) {
            return Ok(false);
        }
        if try_lock(&old).map_err(failed("locking it"))? {
            if is_at(&old, path) {
                let access = old.metadata().map_err(failed("keeping its access"))?;
                return replace(path, contents, Access::Of(&access)).map(|_| true);
            }
        } else if begun.elapsed() > PATIENCE {
            return Err(failed("locking it")(ErrorKind::TimedOut.into()));
        } else {
            sleep(Duration::from_millis(5));
        }
    }
}

/// Other processes hold the lock while they write one file, which takes seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{FileKind, file_kind};

    const LIMIT: u64 = 1000;

    #[test]
    fn only_contents_that_are_accepted_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let over = |contents: &[u8], old: &'static [u8]| {
            publish_if(&path, contents, LIMIT, |text| text == old).expect("published")
        };
        assert!(over(b"one", b"nothing is asked"));
        assert!(!over(b"two", b"other"));
        assert!(over(b"two", b"one"));
        assert_eq!(fs::read(&path).expect("there"), b"two");
        fs::write(&path, vec![0; 1001]).expect("written");
        assert!(!publish_if(&path, b"three", LIMIT, |_| true).expect("beyond the limit"));
        let missing = folder.path().join("no folder").join("file");
        publish_if(&missing, b"", LIMIT, |_| true).expect_err("no folder");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn one_of_several_writers_replaces_the_accepted_contents() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "free").expect("written");
        let claim = |number: u32| {
            let text = number.to_string();
            publish_if(&path, text.as_bytes(), LIMIT, |old| old == b"free").expect("published")
        };
        let done: Vec<bool> = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..8).map(|number| scope.spawn(move || claim(number))).collect();
            claims.into_iter().map(|claim| claim.join().expect("no panic")).collect()
        });
        assert_eq!(done.iter().filter(|done| **done).count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_special_files_are_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("victim"), "victim").expect("written");
        std::os::unix::fs::symlink("victim", path("link")).expect("a link");
        std::os::unix::fs::symlink("new", path("dangling")).expect("a link");
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).expect("a socket");
        fs::create_dir(path("folder")).expect("made");
        let pipe = std::process::Command::new("mkfifo").arg(path("pipe")).status();
        assert!(pipe.expect("runs").success());
        for (name, why) in [
            ("link", "it is a link"),
            ("dangling", "it is a link"),
            ("socket", "it is a socket"),
            ("folder", "it is a folder"),
            ("pipe", "it is not a regular file"),
        ] {
            let refused = publish_if(&path(name), b"x", LIMIT, |_| true).expect_err(name);
            assert_eq!(refused.error.to_string(), why);
            assert_eq!(append(&path(name)).expect_err(name).to_string(), why);
        }
        assert_eq!(file_kind(&path("pipe")).expect("a stream"), FileKind::Stream);
        assert_eq!(file_kind(&path("nothing")).expect("none"), FileKind::Missing);
        assert_eq!(fs::read(path("victim")).expect("there"), b"victim");
        assert!(!path("new").exists());
    }
}
