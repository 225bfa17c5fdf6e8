//! Follows a log that grows.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use gridguard::diagnose::LogScanner;

use crate::error::{CommandError, Exit};
use crate::interrupt;

/// Time between two looks at the file.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes that are read at once, and the longest unfinished line that is kept.
const CHUNK_BYTES: u64 = 1 << 20;

/// Scans `file` as it grows, from its start. Calls `explain` with the log and the number of failures that it already
/// had, once a look finds nothing new: the traceback of a failure may follow its message. Begins anew if the file
/// becomes shorter.
pub(crate) fn follow(
    file: &Path,
    mut explain: impl FnMut(&LogScanner, usize) -> Result<(), CommandError>,
) -> Result<Exit, CommandError> {
    let stop = interrupt::quiet_flag()?;
    let name = file.display().to_string();
    let failed = || CommandError::io(name.clone());
    let mut log = Log { scanner: LogScanner::new(), open: Vec::new(), known: 0 };
    let mut input = File::open(file).map_err(|error| match error.kind() {
        ErrorKind::NotFound => CommandError::missing_file(file),
        _ => failed()(error),
    })?;
    let mut place = 0;
    while !stop.load(Ordering::Relaxed) {
        let metadata = input.metadata().map_err(failed())?;
        if metadata.is_file() && metadata.len() < place {
            place = input.seek(SeekFrom::Start(0)).map_err(failed())?;
            log = Log { scanner: LogScanner::new(), open: Vec::new(), known: 0 };
        }
        let before = log.open.len();
        input.by_ref().take(CHUNK_BYTES).read_to_end(&mut log.open).map_err(failed())?;
        let read = log.open.len().saturating_sub(before);
        place = place.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        if read > 0 {
            log.scan().map_err(failed())?;
        } else {
            log.report(&mut explain)?;
            wait(stop);
        }
    }
    Ok(Exit::Interrupted)
}

fn wait(stop: &AtomicBool) {
    if !stop.load(Ordering::Relaxed) {
        sleep(PAUSE);
    }
}

struct Log {
    scanner: LogScanner,
    /// The line that has not ended.
    open: Vec<u8>,
    /// The failures that were explained.
    known: usize,
}

impl Log {
    /// Scans the lines that have ended, and a line that is too long to keep.
    fn scan(&mut self) -> std::io::Result<()> {
        let is_long = u64::try_from(self.open.len()).is_ok_and(|bytes| bytes > CHUNK_BYTES);
        let ended = self.open.iter().rposition(|byte| *byte == b'\n').map(|end| end + 1);
        let Some(end) = ended.or(is_long.then_some(self.open.len())) else { return Ok(()) };
        let (lines, _) = self.open.split_at(end);
        self.scanner.read(lines)?;
        self.open.drain(..end);
        Ok(())
    }

    fn report(
        &mut self,
        explain: &mut impl FnMut(&LogScanner, usize) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let count = self.scanner.count();
        if count > self.known {
            explain(&self.scanner, self.known)?;
            self.known = count;
        }
        Ok(())
    }
}
