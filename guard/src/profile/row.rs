//! Header and entries as RON's own parser reads them.

use serde::Deserialize;

use super::entry::{Entry, Named, Provenance, StoredChoice, Summary};
use super::environment::Environment;
use super::identity::DeviceIdentity;
use super::key::{Key, Objective, Policy};

/// What stands before the entries.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderRow {
    #[serde(rename = "schema")]
    _schema: u64,
    pub(super) device: DeviceIdentity,
    #[serde(default)]
    pub(super) aliases: Vec<String>,
    pub(super) environment: Environment,
}

/// An entry, whose fields lie flat in a file. A field that a later version adds needs a default.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntryRow {
    kernel: String,
    source: String,
    #[serde(default)]
    variant: String,
    dtypes: String,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    objective: Objective,
    shape: Named,
    choice: StoredChoice,
    #[serde(default)]
    parameters: Named,
    launches: u64,
    chosen: Summary,
    default: Summary,
    found: Provenance,
}

impl From<EntryRow> for Entry {
    fn from(row: EntryRow) -> Self {
        let EntryRow { kernel, source, variant, dtypes, policy, objective, .. } = row;
        let EntryRow { shape, choice, parameters, launches, chosen, default, found, .. } = row;
        let key = Key { kernel, source, variant, dtypes, policy, objective };
        Self { key, shape, choice, parameters, launches, chosen, default, found }
    }
}
