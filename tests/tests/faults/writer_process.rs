//! The process that writes profiles until it is killed.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use gridguard::profile::{Document, publish, update};

use crate::device_setup::{document, entry};

/// Environment variable: how, as which kernel and where to write.
const HOW: &str = "GRIDGUARD_FAULTS_WRITES";
const KERNEL: &str = "GRIDGUARD_FAULTS_WRITES_AS";
const PATH: &str = "GRIDGUARD_FAULTS_WRITES_TO";
/// Starts a line with the number of acknowledged writes.
pub(crate) const WROTE: &str = "wrote ";
/// Entries of a whole rewrite.
pub(crate) const ENTRIES: u64 = 200;

/// How a process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// One entry after another.
    Entries,
    /// The same entries repeatedly, each time with a later date.
    Rewrites,
    /// One entry after another, as changes to the file.
    Changes,
}

impl How {
    const ALL: [Self; 3] = [Self::Entries, Self::Rewrites, Self::Changes];

    const fn name(self) -> &'static str {
        match self {
            Self::Entries => "entries",
            Self::Rewrites => "rewrites",
            Self::Changes => "changes",
        }
    }
}

/// A process that writes to `path` as `kernel`, and prints a line after each write.
pub(crate) fn process(how: How, kernel: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "runs_in_a_child_process", "--nocapture", "--test-threads=1"]);
    command.env(HOW, how.name()).env(KERNEL, kernel).env(PATH, path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

pub(crate) fn is_requested() -> bool {
    std::env::var_os(HOW).is_some()
}

pub(crate) fn write() {
    let how = std::env::var(HOW).expect("asked for");
    let how = How::ALL.into_iter().find(|one| one.name() == how).expect("a way to write");
    let kernel = std::env::var(KERNEL).expect("a name");
    let path = std::env::var_os(PATH).expect("a path");
    let path = Path::new(&path);
    for number in 0.. {
        let one = || document([entry(&kernel, number, number)]);
        match how {
            How::Entries => drop(publish(path, &one()).expect("published")),
            How::Rewrites => {
                let entries = (0..ENTRIES).map(|row| entry(&kernel, row, number));
                drop(publish(path, &document(entries)).expect("published"));
            }
            How::Changes => {
                let insert = |document: &mut Document| {
                    document.insert(entry(&kernel, number, number)).expect("within bounds");
                    Ok(())
                };
                update(path, document([]), insert).expect("changed");
            }
        }
        let mut out = std::io::stdout().lock();
        out.write_all(format!("\n{WROTE}{number}\n").as_bytes()).expect("someone listens");
        out.flush().expect("someone listens");
    }
}
