//! Entries and faults as data for programs.

use gridguard::profile::{
    Entry, Fault, Key, Named, Objective, Policy, Provenance, StoredChoice, Summary,
};
use serde::Serialize;

/// What an entry is of, flat.
#[derive(Clone, Debug, Serialize)]
pub(super) struct KeyRecord<'a> {
    kernel: &'a str,
    source: &'a str,
    variant: &'a str,
    dtypes: &'a str,
    policy: Policy,
    objective: Objective,
}

/// An entry, flat.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EntryRecord<'a> {
    #[serde(flatten)]
    key: KeyRecord<'a>,
    shape: &'a Named,
    choice: StoredChoice,
    parameters: &'a Named,
    launches: u64,
    chosen: Summary,
    default: Summary,
    found: &'a Provenance,
}

impl<'a> From<&'a Key> for KeyRecord<'a> {
    fn from(key: &'a Key) -> Self {
        let Key { kernel, source, variant, dtypes, policy, objective } = key;
        Self { kernel, source, variant, dtypes, policy: *policy, objective: *objective }
    }
}

impl<'a> From<&'a Entry> for EntryRecord<'a> {
    fn from(entry: &'a Entry) -> Self {
        let Entry { key, shape, choice, parameters, launches, chosen, default, found } = entry;
        Self {
            key: key.into(),
            shape,
            choice: *choice,
            parameters,
            launches: *launches,
            chosen: *chosen,
            default: *default,
            found,
        }
    }
}

/// A bad entry of a file.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FaultRecord {
    file: String,
    line: usize,
    column: usize,
    message: String,
}

impl FaultRecord {
    pub(super) fn all(file: &std::path::Path, faults: &[Fault]) -> Vec<Self> {
        let record = |fault: &Fault| Self {
            file: file.display().to_string(),
            line: fault.line,
            column: fault.column,
            message: fault.message.clone(),
        };
        faults.iter().map(record).collect()
    }
}
