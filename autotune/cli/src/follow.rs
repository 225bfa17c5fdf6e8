//! Follows a log that grows.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use gridguard_diagnose::{LogScanner, MAX_FINDINGS};

use crate::error::{CommandError, Exit};
use crate::files::open;
use crate::interrupt;
use crate::output::note;

/// Time between two looks at the file. A failure is explained after a pause of this length.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 16;
/// The longest unfinished line that is kept.
const LINE_BYTES: usize = 1 << 20;
/// A failure is explained after this number of lines, even without a pause. Tracebacks below a message are shorter.
const SETTLED_LINES: u64 = 64;

/// Scans `file` as it grows, from its start, until Ctrl-C or the end of an unnamed pipe. Calls `explain` with the log,
/// the number of its failures that were explained before, and the number of lines before the log. The traceback of a
/// failure may follow its message, so it waits for a pause. Begins anew if the file becomes shorter or is replaced.
pub(crate) fn follow(
    file: &Path,
    mut explain: impl FnMut(&LogScanner, usize, u64) -> Result<(), CommandError>,
) -> Result<Exit, CommandError> {
    // A read of a pipe may wait for ever.
    interrupt::at_once()?;
    let name = file.display().to_string();
    let failed = || CommandError::io(name.clone());
    let input = open(file)?;
    let (send, news) = sync_channel(1);
    let source = Source { path: file.to_owned(), file: input, place: 0 };
    thread::spawn(move || source.watch(&send));
    let mut log = Log::default();
    let exit = Cell::new(Exit::No);
    let mut explain = |scanner: &LogScanner, known, lines| {
        exit.set(Exit::Yes);
        explain(scanner, known, lines)
    };
    loop {
        match news.recv_timeout(PAUSE) {
            Ok(News::Bytes(bytes)) => log.scan(&bytes).map_err(failed())?,
            Ok(News::Failed(error)) => return Err(failed()(error)),
            Ok(News::Anew) => {
                log.end().map_err(failed())?;
                log.report(&mut explain)?;
                log = Log::default();
            }
            Err(RecvTimeoutError::Timeout) => log.report(&mut explain)?,
            Err(RecvTimeoutError::Disconnected) => {
                log.end().map_err(failed())?;
                log.report(&mut explain)?;
                return Ok(exit.get());
            }
        }
        if log.is_settled() {
            log.report(&mut explain)?;
        }
    }
}

/// What happened to the file.
enum News {
    Bytes(Vec<u8>),
    /// The file became shorter, or is another one.
    Anew,
    Failed(io::Error),
}

/// The file, and the number of bytes that were read.
struct Source {
    path: PathBuf,
    file: File,
    place: u64,
}

impl Source {
    /// Sends each read, until the receiver is gone, a read fails, or nothing can follow.
    fn watch(mut self, news: &SyncSender<News>) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let next = match self.file.read(&mut chunk) {
                Ok(0) => match self.renew() {
                    Ok(Some(true)) => Some(News::Anew),
                    Ok(Some(false)) => None,
                    Ok(None) => return,
                    Err(error) => Some(News::Failed(error)),
                },
                Ok(read) => {
                    self.place = self.place.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
                    Some(News::Bytes(chunk.get(..read).unwrap_or_default().to_vec()))
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Some(News::Failed(error)),
            };
            let Some(next) = next else {
                thread::sleep(PAUSE);
                continue;
            };
            let is_end = matches!(next, News::Failed(_));
            if news.send(next).is_err() || is_end {
                return;
            }
        }
    }

    /// At the end of the file: whether the file begins anew, because it is shorter or another file has its name.
    /// `None` if nothing can follow.
    fn renew(&mut self) -> io::Result<Option<bool>> {
        let own = self.file.metadata()?;
        if !own.is_file() {
            // A FIFO may get another writer, an unnamed pipe as `/dev/stdin` does not.
            return Ok(self.path.canonicalize().is_ok().then_some(false));
        }
        if own.len() < self.place {
            self.place = self.file.seek(SeekFrom::Start(0))?;
            return Ok(Some(true));
        }
        let now = fs::metadata(&self.path).ok().filter(fs::Metadata::is_file);
        let is_other = now.is_some_and(|it| (it.dev(), it.ino()) != (own.dev(), own.ino()));
        // The new file may be gone again.
        let Some(file) = is_other.then(|| File::open(&self.path).ok()).flatten() else {
            return Ok(Some(false));
        };
        (self.file, self.place) = (file, 0);
        Ok(Some(true))
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
    /// Scans the lines that have ended, and a line that is too long to keep.
    fn scan(&mut self, bytes: &[u8]) -> io::Result<()> {
        let ended = bytes.iter().rposition(|byte| *byte == b'\n');
        let ended = ended.map(|end| self.open.len().saturating_add(end).saturating_add(1));
        self.open.extend_from_slice(bytes);
        let is_long = self.open.len() > LINE_BYTES;
        match ended.or(is_long.then_some(self.open.len())) {
            Some(end) => self.scan_to(end),
            None => Ok(()),
        }
    }

    /// Scans a line that nothing follows.
    fn end(&mut self) -> io::Result<()> {
        self.scan_to(self.open.len())
    }

    fn scan_to(&mut self, end: usize) -> io::Result<()> {
        let rest = self.open.split_off(end);
        self.scanner.read(self.open.as_slice())?;
        self.open = rest;
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
