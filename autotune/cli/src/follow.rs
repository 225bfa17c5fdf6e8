//! Follows a log that grows.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use gridguard_diagnose::{LogScanner, MAX_FINDINGS};
use rustix::fs::OFlags;

use crate::error::{CommandError, Exit};
use crate::files::open_with;
use crate::interrupt;
use crate::output::note;

/// Time between two looks at the file. A failure is explained after a pause of this length.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest unfinished line that is kept.
const LINE_BYTES: u64 = 1 << 20;
/// A failure is explained after this number of lines, even without a pause. Tracebacks below a message are shorter.
const SETTLED_LINES: u64 = 64;

/// Scans `file` as it grows, from its start, until Ctrl-C or the end of an unnamed pipe. Calls `explain` with the log,
/// the number of its failures that were explained before, and the number of lines before the log. The traceback of a
/// failure may follow its message, so it waits for a pause. Begins anew if the file becomes shorter or is replaced.
pub(crate) fn follow(
    file: &Path,
    mut explain: impl FnMut(&LogScanner, usize, u64) -> Result<(), CommandError>,
) -> Result<Exit, CommandError> {
    interrupt::at_once()?;
    let failed = || CommandError::io(file.display());
    // A pipe without a writer is no reason to wait for one.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let input = open_with(file, File::options().read(true).custom_flags(nonblocking))?;
    let mut source = Source { path: file.to_owned(), input: BufReader::new(input), place: 0 };
    let mut log = Log::default();
    let exit = Cell::new(Exit::No);
    let mut explain = |scanner: &LogScanner, known, lines| {
        exit.set(Exit::Yes);
        explain(scanner, known, lines)
    };
    let mut was_idle = false;
    loop {
        let next = match (&mut source.input).take(LINE_BYTES).read_until(b'\n', &mut log.open) {
            Ok(0) => source.renew().map_err(failed())?,
            Ok(read) => {
                source.place = source.place.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
                log.scan(false).map_err(failed())?;
                if log.is_settled() {
                    log.report(&mut explain)?;
                }
                was_idle = false;
                continue;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Next::Wait,
            Err(error) => return Err(failed()(error)),
        };
        if next == Next::Wait {
            if was_idle {
                log.report(&mut explain)?;
            }
            was_idle = true;
            thread::sleep(PAUSE);
            continue;
        }
        log.scan(true).map_err(failed())?;
        log.report(&mut explain)?;
        if next == Next::End {
            return Ok(exit.get());
        }
        log = Log::default();
    }
}

/// What follows the end of the file.
#[derive(PartialEq)]
enum Next {
    Wait,
    /// The file became shorter, or another one has its name.
    Anew,
    /// Nothing can follow.
    End,
}

/// The file, and the number of bytes that were read.
struct Source {
    path: PathBuf,
    input: BufReader<File>,
    place: u64,
}

impl Source {
    fn renew(&mut self) -> io::Result<Next> {
        let own = self.input.get_ref().metadata()?;
        if !own.is_file() {
            // A FIFO may get another writer, an unnamed pipe as `/dev/stdin` does not.
            return Ok(if self.path.canonicalize().is_ok() { Next::Wait } else { Next::End });
        }
        if own.len() < self.place {
            self.place = self.input.seek(SeekFrom::Start(0))?;
            return Ok(Next::Anew);
        }
        let now = fs::metadata(&self.path).ok().filter(fs::Metadata::is_file);
        let is_other = now.is_some_and(|it| (it.dev(), it.ino()) != (own.dev(), own.ino()));
        // The new file may be gone again.
        let Some(file) = is_other.then(|| File::open(&self.path).ok()).flatten() else {
            return Ok(Next::Wait);
        };
        (self.input, self.place) = (BufReader::new(file), 0);
        Ok(Next::Anew)
    }
}

#[derive(Default)]
struct Log {
    scanner: LogScanner,
    /// The line that has not ended.
    open: Vec<u8>,
    /// The number of failures that were explained.
    explained: usize,
    /// The number of lines when the first failure was found that is not explained.
    found_at: Option<u64>,
    /// The lines of earlier scanners.
    lines_before: u64,
}

impl Log {
    /// Scans the open line if it has ended, if it is too long to keep, or if nothing follows it.
    fn scan(&mut self, is_last: bool) -> io::Result<()> {
        let is_long = u64::try_from(self.open.len()).is_ok_and(|length| length >= LINE_BYTES);
        if !is_last && !is_long && !self.open.ends_with(b"\n") {
            return Ok(());
        }
        self.scanner.read(self.open.as_slice())?;
        self.open.clear();
        if self.scanner.count() > self.explained {
            self.found_at.get_or_insert(self.scanner.lines());
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let since = |found: u64| self.scanner.lines().saturating_sub(found);
        self.found_at.is_some_and(|found| since(found) > SETTLED_LINES)
    }

    /// Explains the new failures. A full scanner is replaced, so that the failures after it are explained too.
    fn report(
        &mut self,
        explain: &mut impl FnMut(&LogScanner, usize, u64) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        if self.found_at.take().is_none() {
            return Ok(());
        }
        explain(&self.scanner, self.explained, self.lines_before)?;
        self.explained = self.scanner.count();
        if self.explained == MAX_FINDINGS {
            let dropped = self.scanner.dropped();
            if dropped > 0 {
                note(format_args!("{dropped} more lines report further failures"));
            }
            self.lines_before = self.lines_before.saturating_add(self.scanner.lines());
            (self.scanner, self.explained) = (LogScanner::new(), 0);
        }
        Ok(())
    }
}
