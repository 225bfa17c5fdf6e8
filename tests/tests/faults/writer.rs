//! Writers of profiles that are killed, one or several at a time: acknowledged entries survive.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use gridguard::profile::{Document, Entry, load, publish, update};
use gridguard_test_support::Random;

use crate::observed::{Expected, Observed, Seen};
use crate::setup::{Setup, document, entry};

/// Environment variable: how, as which kernel and where to write.
const WRITES: &str = "GRIDGUARD_FAULTS_WRITES";
/// Starts a line with the number of acknowledged writes.
const WROTE: &str = "wrote ";
/// One entry after another.
const ENTRIES: u64 = 0;
/// The same entries repeatedly, each time with a later date.
const REWRITES: u64 = 1;
/// Entries of a whole rewrite.
const ROWS: u64 = 200;

/// A writing process and its output. What it does besides [`ENTRIES`] and [`REWRITES`] is to change the file by one
/// entry after another.
struct Writer {
    how: u64,
    kernel: String,
    child: Child,
    lines: BufReader<ChildStdout>,
    acknowledged: Option<u64>,
}

impl Writer {
    fn start(how: u64, kernel: String, path: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "runs_in_a_child_process", "--nocapture", "--test-threads=1"]);
        command.env(WRITES, format!("{how}:{kernel}:{}", path.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { how, kernel, child, lines, acknowledged: None }
    }

    /// Reads one line; returns whether there was one.
    fn read_line(&mut self) -> bool {
        let mut line = String::new();
        let is_read = self.lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0);
        // A truncated line acknowledges nothing.
        let number = line.strip_suffix('\n').and_then(|line| line.strip_prefix(WROTE));
        if let Some(number) = number {
            self.acknowledged = Some(number.parse().expect("a number"));
        }
        is_read
    }

    /// Kills it once this many writes are acknowledged, and `later` has passed.
    fn kill_after(&mut self, written: u64, later: Duration) {
        while self.acknowledged.is_none_or(|last| last < written) {
            assert!(self.read_line(), "{} ended by itself", self.kernel);
        }
        std::thread::sleep(later);
        self.child.kill().expect("its own child");
        self.child.wait().expect("its own child");
        while self.read_line() {}
    }

    /// Whether all that was acknowledged is among the entries.
    fn is_whole(&self, entries: &[Entry]) -> bool {
        let Some(last) = self.acknowledged else { return true };
        let holds = |row, date| entries.contains(&entry(&self.kernel, row, date));
        match self.how {
            // All of the last acknowledged date, or all of the next one.
            REWRITES => [last, last + 1].iter().any(|date| (0..ROWS).all(|row| holds(row, *date))),
            _ => (0..=last).all(|number| holds(number, number)),
        }
    }
}

pub(crate) fn inject(setup: &Setup, number: u64, random: &mut Random) -> Observed {
    let (how, others) = (number % 3, number / 3 % 3);
    let (written, later) = (random.below(6), Duration::from_micros(random.below(4000)));
    let drawn = format!("writers of kind {how}, {others} others, {written} writes, {later:?}");
    let folder = tempfile::tempdir_in(&setup.own).expect("a folder of its own");
    let path = folder.path().join("any.ron");
    let start = |number: u64| Writer::start(how, format!("writer{number}"), &path);
    let mut writers: Vec<_> = (0..=others).map(start).collect();
    let (first, waiting) = writers.split_first_mut().expect("one or more");
    first.kill_after(written, later);
    // A waiting writer gets the file once the one before it is gone.
    waiting.iter_mut().for_each(|writer| writer.kill_after(0, Duration::ZERO));

    let read = load(&path);
    let document = read.as_ref().ok().and_then(Option::as_ref).filter(|it| it.faults.is_empty());
    let entries = document.map_or(&[][..], |read| read.document.entries());
    let lost = writers.iter().filter(|writer| !writer.is_whole(entries));
    let outcome = if document.is_some() { "Ok, a whole file" } else { "no whole file" };
    let expected = Expected { outcomes: &["Ok, a whole file"], ..Expected::default() };
    let mut observed = Observed::new(drawn, &Seen::outcome(outcome), &expected);
    observed.lost_profiles = u64::try_from(lost.count()).expect("few");
    let lost = observed.lost_profiles;
    observed.require(lost == 0, || format!("of {lost} writers, acknowledged entries are missing"));
    // The lock ended with its holder, and the next writer removes what that left.
    let next = publish(&path, &self::document([entry("after", 1, 1)]));
    observed.require(next.is_ok(), || format!("the next writer: {next:?}"));
    let files = std::fs::read_dir(folder.path()).expect("the folder");
    let mut names: Vec<_> = files.map(|file| file.expect("a file").file_name()).collect();
    names.sort();
    observed.require(names == ["any.ron", "any.ron.lock"], || format!("left are {names:?}"));
    observed
}

/// In the process of a writer: writes until it is killed, and prints a line after each write.
pub(crate) fn write_if_requested() -> bool {
    let Ok(request) = std::env::var(WRITES) else { return false };
    let [how, kernel, path] = request.splitn(3, ':').collect::<Vec<_>>()[..] else {
        panic!("{request}: not HOW:KERNEL:PATH");
    };
    let (how, path) = (how.parse().expect("a number"), Path::new(path));
    for number in 0.. {
        match how {
            ENTRIES => {
                publish(path, &document([entry(kernel, number, number)])).expect("published");
            }
            REWRITES => {
                let entries = (0..ROWS).map(|row| entry(kernel, row, number));
                publish(path, &document(entries)).expect("published");
            }
            _ => {
                let insert = |document: &mut Document| {
                    document.insert(entry(kernel, number, number)).expect("within bounds");
                    Ok(())
                };
                update(path, document([]), insert).expect("changed");
            }
        }
        let mut out = std::io::stdout().lock();
        out.write_all(format!("\n{WROTE}{number}\n").as_bytes()).expect("someone listens");
        out.flush().expect("someone listens");
    }
    true
}
