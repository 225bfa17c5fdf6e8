//! Reads profiles, and shows their entries as JSON and as text.

use std::path::Path;

use gridguard::profile::{
    self, Document, Entry, FileFault, Key, Named, Objective, ParsedProfile, Policy, Provenance,
    StoredChoice, Summary,
};
use gridguard_autotune::duration;
use serde::{Serialize, Serializer};

use crate::error::CommandError;
use crate::output::{Table, count, note};

/// Reads a profile that must exist, and reports its invalid entries.
pub(super) fn read(path: &Path) -> Result<ParsedProfile, CommandError> {
    let parsed = profile::load(path).map_err(CommandError::profile(path))?;
    let parsed = parsed.ok_or_else(|| CommandError::missing_file(path))?;
    for fault in &parsed.faults {
        note(format_args!("{}:{fault}", path.display()));
    }
    Ok(parsed)
}

/// A profile of the same device without entries.
pub(super) fn empty_like(document: &Document) -> Document {
    Document::new(document.device().clone(), document.environment().clone())
}

/// Reports the copy that an update keeps of a file with invalid entries.
pub(super) fn note_backup(file: &Path, backup: Option<&Path>) {
    if let Some(backup) = backup {
        let (file, backup) = (file.display(), backup.display());
        note(format_args!("{file} had invalid entries; the original is kept as {backup}"));
    }
}

/// An entry as a flat JSON object.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryJson<'a>(pub(super) &'a Entry);

/// A key as a flat JSON object.
#[derive(Debug, Serialize)]
pub(super) struct KeyJson<'a> {
    kernel: &'a str,
    source: &'a str,
    variant: &'a str,
    dtypes: &'a str,
    policy: Policy,
    objective: Objective,
}

impl<'a> From<&'a Key> for KeyJson<'a> {
    fn from(key: &'a Key) -> Self {
        let Key { kernel, source, variant, dtypes, policy, objective } = key;
        Self { kernel, source, variant, dtypes, policy: *policy, objective: *objective }
    }
}

impl Serialize for EntryJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            #[serde(flatten)]
            key: KeyJson<'a>,
            shape: &'a Named,
            choice: StoredChoice,
            parameters: &'a Named,
            launches: u64,
            chosen: Summary,
            default: Summary,
            found: &'a Provenance,
        }
        let Entry { key, shape, choice, parameters, launches, chosen, default, found } = self.0;
        let (choice, launches, chosen, default) = (*choice, *launches, *chosen, *default);
        let key = key.into();
        Fields { key, shape, choice, parameters, launches, chosen, default, found }
            .serialize(serializer)
    }
}

/// An invalid entry of a file.
#[derive(Debug, Serialize)]
pub(super) struct FaultJson {
    file: String,
    line: usize,
    column: usize,
    message: String,
}

impl FaultJson {
    pub(super) fn all(file: &Path, faults: &[FileFault]) -> Vec<Self> {
        let json = |fault: &FileFault| Self {
            file: file.display().to_string(),
            line: fault.line,
            column: fault.column,
            message: fault.message.clone(),
        };
        faults.iter().map(json).collect()
    }
}

/// A table of entries: columns that say what each is for, then `more`.
pub(super) fn entry_table<const N: usize>(more: [&str; N]) -> Table {
    let first = ["kernel", "variant", "types", "shape", "measured for"];
    Table::new(first.into_iter().chain(more))
}

/// Adds an entry to a table made by [`entry_table`].
pub(super) fn push_entry<const N: usize>(table: &mut Table, entry: &Entry, more: [String; N]) {
    let Key { kernel, variant, dtypes, policy, objective, .. } = &entry.key;
    // What is usual is left out.
    let policy = (*policy != Policy::default()).then(|| policy.to_string());
    let objective = (*objective != Objective::default()).then(|| objective.to_string());
    let purpose: Vec<String> = policy.into_iter().chain(objective).collect();
    let first =
        [kernel.clone(), variant.clone(), dtypes.clone(), shape(&entry.shape), purpose.join(", ")];
    table.push(first.into_iter().chain(more));
}

/// `rms_norm f16, cold-eager, throughput, 32768x4096`.
pub(super) fn subject(entry: &Entry) -> String {
    format!("{}, {}", entry.key, shape(&entry.shape))
}

/// `32768x4096`.
pub(super) fn shape(shape: &Named) -> String {
    let sizes: Vec<String> = shape.iter().map(|(_, size)| size.to_string()).collect();
    sizes.join("x")
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

/// `102.4 us`; `None` if nothing was measured.
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

/// The relative change of a time; `None` if one of the two was not measured.
pub(super) fn change(before_ns: u64, now_ns: u64) -> Option<f64> {
    (before_ns > 0 && now_ns > 0).then(|| real(now_ns) / real(before_ns) - 1.0)
}

/// `1 entry`, `2 entries`.
pub(super) fn entries(number: usize) -> String {
    count(number, "entry", "entries")
}

#[allow(clippy::as_conversions, reason = "exact up to 2^53, which exceeds every time and size")]
pub(super) const fn real(count: u64) -> f64 {
    count as f64
}
