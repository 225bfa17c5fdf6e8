//! Writers of profiles that are killed, one or several at a time: acknowledged entries survive.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::time::Duration;

use gridguard::profile::{Entry, load, publish};
use gridguard_test_support::Random;

use crate::device_setup::{DeviceSetup, document, entry};
use crate::environment::RunEnvironment;
use crate::expected::{Expected, Observed};
use crate::fault::Case;
use crate::observed_error::{Describe, ObservedError};
use crate::writer_process::{ENTRIES, How, WROTE, process};

/// Killed writers.
#[derive(Debug)]
pub(crate) struct KilledWriter {
    how: How,
    /// Writes of the first one before it is killed.
    written: u64,
    /// Microseconds after that write until it is killed.
    later_us: u64,
    /// Further writers to the same file, killed after the first.
    others: u64,
}

pub(crate) fn draw(number: u64, random: &mut Random) -> KilledWriter {
    let hows = [How::Entries, How::Rewrites, How::Changes];
    let how = hows[usize::try_from(number % 3).expect("few")];
    KilledWriter {
        how,
        written: random.below(6),
        later_us: random.below(4000),
        others: number / 3 % 3,
    }
}

/// A writing process and its output.
struct Writer {
    kernel: String,
    child: Child,
    said: BufReader<ChildStdout>,
    acknowledged: Option<u64>,
}

impl Writer {
    fn start(how: How, kernel: String, path: &Path) -> Self {
        let mut child = process(how, &kernel, path).spawn().expect("starts");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        Self { kernel, child, said, acknowledged: None }
    }

    /// Reads one line; returns whether there was one.
    fn listen(&mut self) -> bool {
        let mut line = String::new();
        let heard = self.said.read_line(&mut line).is_ok_and(|bytes| bytes > 0);
        // A truncated line acknowledges nothing.
        let number = line.strip_suffix('\n').and_then(|line| line.strip_prefix(WROTE));
        if let Some(number) = number {
            self.acknowledged = Some(number.parse().expect("a number"));
        }
        heard
    }

    /// Reads until `written` writes are acknowledged.
    fn hear(&mut self, written: u64) {
        while self.acknowledged.is_none_or(|last| last < written) {
            assert!(self.listen(), "{} ended by itself", self.kernel);
        }
    }

    /// Kills it, and reads the rest of its output.
    fn kill(&mut self) {
        self.child.kill().expect("its own child");
        self.child.wait().expect("its own child");
        while self.listen() {}
    }

    /// A problem with its entries, if there is one.
    fn look(&self, how: How, entries: &[Entry]) -> Option<String> {
        let own: Vec<_> = entries.iter().filter(|one| one.key.kernel == self.kernel).collect();
        let last = self.acknowledged?;
        match how {
            How::Entries | How::Changes => {
                let there = |number: u64| own.contains(&&entry(&self.kernel, number, number));
                let missing = (0..=last).find(|number| !there(*number))?;
                Some(format!("{missing} of {last} was acknowledged and is missing"))
            }
            How::Rewrites => {
                // All of the last acknowledged date, or all of the next one.
                let whole =
                    |date| (0..ENTRIES).all(|row| own.contains(&&entry(&self.kernel, row, date)));
                (!whole(last) && !whole(last + 1))
                    .then(|| format!("{last} is not there as a whole"))
            }
        }
    }
}

impl KilledWriter {
    fn kill_all(&self, path: &Path, observed: &mut Observed) -> ObservedError {
        let name = |number: u64| format!("writer{number}");
        let mut first = Writer::start(self.how, name(0), path);
        let others = (1..=self.others).map(|number| Writer::start(self.how, name(number), path));
        let mut others: Vec<_> = others.collect();
        first.hear(self.written);
        std::thread::sleep(Duration::from_micros(self.later_us));
        first.kill();
        for other in &mut others {
            // A waiting writer gets the file once the one before it is gone.
            other.hear(0);
            other.kill();
        }
        let read = match load(path) {
            Ok(Some(read)) => read,
            other => {
                observed.lost_profiles += 1;
                return ObservedError::outcome(format!("the file reads as {other:?}"));
            }
        };
        if !read.faults.is_empty() {
            observed.lost_profiles += 1;
            return ObservedError::outcome(format!("bad entries: {:?}", read.faults));
        }
        for writer in [&first].into_iter().chain(&others) {
            if let Some(lost) = writer.look(self.how, read.document.entries()) {
                observed.lost_profiles += 1;
                observed.complain(lost);
            }
        }
        ObservedError::outcome("Ok, a whole file with all that was acknowledged")
    }
}

impl Case for KilledWriter {
    fn name(&self) -> &'static str {
        match self.how {
            How::Entries => "publishing",
            How::Rewrites => "rewriting",
            How::Changes => "changing",
        }
    }

    fn needs_a_process(&self) -> bool {
        false
    }

    fn expected(&self, _ground: &RunEnvironment) -> Expected {
        Expected::one_of(["Ok, a whole file with all that was acknowledged"])
    }

    fn inject(&self, setup: &DeviceSetup) -> Observed {
        let folder = tempfile::tempdir_in(&setup.folder).expect("a folder of its own");
        let path = folder.path().join("any.ron");
        let mut observed = Observed::default();
        observed.error = self.kill_all(&path, &mut observed);
        // The lock ended with its holder, and the next writer removes what that left.
        if let Err(error) = publish(&path, &document([entry("after", 1, 1)])) {
            observed.complain(format!("the next writer: {}", error.describe().text));
        }
        let files = std::fs::read_dir(folder.path()).expect("the folder");
        let mut names: Vec<_> = files.map(|file| file.expect("a file").file_name()).collect();
        names.sort();
        observed.require(names == ["any.ron", "any.ron.lock"], || format!("left are {names:?}"));
        observed
    }
}
