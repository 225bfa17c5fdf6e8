//! What the user's own Python tells of its PyTorch.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::child::{self, Ended};

/// What stands before the answer.
const MARK: &str = "gridguard-doctor ";
const PROBE: &str = include_str!("probe.py");

/// What became of the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The Python could not be started.
    Unstarted(String),
    Late(Duration),
    /// It died, with its last words.
    Died(String),
    /// It said something else.
    Garbled(String),
    Torch(Box<Torch>),
}

/// A PyTorch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Torch {
    /// The version of the Python.
    pub(super) python: String,
    /// There is none in this Python.
    pub(super) missing: bool,
    /// The file that Python finds in its place.
    pub(super) hidden_by: Option<String>,
    /// Why it could not be imported or asked, where it could not.
    pub(super) error: Option<String>,
    pub(super) version: String,
    /// The CUDA version that it was built for; none where without CUDA.
    pub(super) cuda: Option<String>,
    /// The ROCm version that it was built for.
    pub(super) hip: Option<String>,
    /// What it has code for, such as `sm_90` and `compute_90`.
    pub(super) architectures: Vec<String>,
    pub(super) cudnn: Option<u64>,
    pub(super) devices: u64,
    pub(super) available: bool,
    pub(super) warnings: Vec<String>,
}

impl Torch {
    fn says_something(&self) -> bool {
        let Self { missing, hidden_by, error, version, .. } = self;
        *missing || hidden_by.is_some() || error.is_some() || !version.is_empty()
    }
}

/// The Python that a path names: that of a virtual environment, where it is a folder.
pub(super) fn of(path: &Path) -> PathBuf {
    let inside = ["bin/python", "bin/python3", "Scripts/python.exe"].map(|name| path.join(name));
    let found = inside.into_iter().find(|python| path.is_dir() && python.is_file());
    found.unwrap_or_else(|| path.to_owned())
}

/// Asks `python`, which is given `within` to answer.
pub(super) fn ask(python: &Path, within: Duration) -> Told {
    let mut command = Command::new(python);
    command.args(["-c", PROBE]);
    match child::run(command, within) {
        Ended::Unstarted(error) => Told::Unstarted(error.to_string()),
        Ended::Late => Told::Late(within),
        Ended::Exited { status, out, err } => {
            let answer = out.lines().find_map(|line| line.strip_prefix(MARK));
            match answer.map(serde_json::from_str::<Torch>) {
                // An answer counts, even of one that died on its way out.
                Some(Ok(torch)) if torch.says_something() => Told::Torch(Box::new(torch)),
                _ if !status.success() => {
                    let words = child::last_line(&err).map(|line| format!(", {}", short(line)));
                    Told::Died(format!("{status}{}", words.unwrap_or_default()))
                }
                _ => Told::Garbled(short(child::last_line(&out).unwrap_or_default())),
            }
        }
    }
}

/// The beginning of a text that may be long, on one line.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 200;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => line.get(..end).unwrap_or_default().to_owned() + " ...",
        None => line,
    }
}
