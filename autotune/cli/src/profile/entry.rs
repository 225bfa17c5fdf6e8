//! Reads profiles, and formats their entries as text.

use std::path::Path;

use gridguard::profile::{
    Entry, FileFault, Key, Named, Objective, ParsedProfile, Policy, StoredChoice,
};
use gridguard_autotune::{duration, real};
use serde::Serialize;

use crate::error::CommandError;
use crate::files::load_profile;
use crate::output::{Table, joined_sizes};

/// Reads a profile that must exist, and notes its invalid entries.
pub(super) fn read(path: &Path) -> Result<ParsedProfile, CommandError> {
    load_profile(path)?.ok_or_else(|| CommandError::missing_file(path))
}

#[derive(Serialize)]
pub(super) struct FaultJson {
    file: String,
    #[serde(flatten)]
    fault: FileFault,
}

impl FaultJson {
    pub(super) fn all(file: &Path, faults: &[FileFault]) -> Vec<Self> {
        let with_file =
            |fault: &FileFault| Self { file: file.display().to_string(), fault: fault.clone() };
        faults.iter().map(with_file).collect()
    }
}

/// An entry that a command treats differently, and why.
#[derive(Clone, Serialize)]
pub(super) struct Remark<E> {
    #[serde(flatten)]
    pub(super) entry: E,
    pub(super) reason: String,
}

/// A row for each entry: the columns of its key, then `more`.
pub(super) fn table<'a, const N: usize>(
    more: [&str; N],
    rows: impl Iterator<Item = (&'a Entry, [String; N])>,
) -> Table {
    let first = ["kernel", "variant", "types", "shape", "measured for"];
    let mut table = Table::new(first.into_iter().chain(more));
    for (Entry { key, shape, .. }, more) in rows {
        let Key { kernel, variant, dtypes, policy, objective, .. } = key;
        // Omits the defaults.
        let policy = (*policy != Policy::default()).then(|| policy.to_string());
        let objective = (*objective != Objective::default()).then(|| objective.to_string());
        let purpose: Vec<String> = policy.into_iter().chain(objective).collect();
        let names = [kernel, variant, dtypes].map(String::clone);
        table.push(names.into_iter().chain([joined_sizes(shape), purpose.join(", ")]).chain(more));
    }
    table
}

/// `warps 4, rounds 1`; empty without parameters.
pub(super) fn parameters(parameters: &Named) -> String {
    let pairs: Vec<String> =
        parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    pairs.join(", ")
}

/// `default`, `whole`, `folded`, `chunks of 8192`.
pub(super) fn choice(choice: StoredChoice) -> String {
    match choice {
        StoredChoice::Automatic => "default".to_owned(),
        other => other.to_string(),
    }
}

/// The choice with its launch parameters: `chunks of 8192, warps 4`.
pub(super) fn full_choice(stored: StoredChoice, named: &Named) -> String {
    match parameters(named) {
        none if none.is_empty() => choice(stored),
        some => format!("{}, {some}", choice(stored)),
    }
}

/// `102.4 us`; `None` if unmeasured.
pub(super) fn time(ns: u64) -> Option<String> {
    (ns > 0).then(|| duration(real(ns)))
}

/// `+8.3 %`, `0.0 %`.
pub(super) fn percent(fraction: f64) -> String {
    match format!("{:+.1} %", fraction * 100.0) {
        zero if matches!(&*zero, "+0.0 %" | "-0.0 %") => "0.0 %".to_owned(),
        other => other,
    }
}

/// The relative change of a time; `None` if unmeasured.
pub(super) fn change(before_ns: u64, now_ns: u64) -> Option<f64> {
    (before_ns > 0 && now_ns > 0).then(|| real(now_ns) / real(before_ns) - 1.0)
}
