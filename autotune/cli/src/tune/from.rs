//! The choices of another GPU's profile, which are candidates on this one.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;

use gridguard::profile::{DeviceIdentity, Entry, Environment, Key, Layers, Named, StoredChoice};
use gridguard::{DeviceLimits, catalog};
use gridguard_autotune::{Candidate, Space};

use crate::error::CommandError;
use crate::files::load_profile;

/// The value of `--from` without a GPU: any with the compute capability of this device.
pub(crate) const FAMILY: &str = "family";

pub(crate) struct OtherProfile {
    name: String,
    entries: Vec<Entry>,
}

impl OtherProfile {
    /// The built-in profile of a GPU, or a file.
    pub(crate) fn find(from: &str, device: &DeviceLimits) -> Result<Self, CommandError> {
        if Path::new(from).is_file() {
            let parsed = load_profile(Path::new(from))?;
            let entries = parsed.map(|parsed| parsed.document.entries().to_vec());
            return Ok(Self { name: from.to_owned(), entries: entries.unwrap_or_default() });
        }
        let is_relative = |other: &&DeviceLimits| {
            other.compute_capability == device.compute_capability && other.name != device.name
        };
        let all = catalog::gpus()?.iter().map(|gpu| &*gpu.limits);
        let others: Vec<&DeviceLimits> = match from {
            FAMILY => all.filter(is_relative).collect(),
            name => vec![&catalog::gpu(name)?.limits],
        };
        let built_in = |other: &DeviceLimits| {
            let identity = DeviceIdentity::new(other);
            let loaded = Layers::new().built_in(&identity).load(&identity, &Environment::default());
            let entries = loaded.profile.entries().map(|(_, entry)| entry.clone()).collect();
            Self { name: other.name.clone(), entries }
        };
        let found = others.into_iter().map(built_in).find(|other| !other.entries.is_empty());
        found.ok_or_else(|| {
            CommandError::invalid(format_args!(
                "--from {from}: there is no built-in profile of such a GPU: name another, or a file"
            ))
        })
    }

    /// The most frequent choices for the key in the other profile, then those for other keys of the kernel: with the
    /// default at most [`MOST`] candidates. `None` if the profile does not have the kernel.
    pub(crate) fn candidates(&self, key: &Key, space: &mut Space) -> Option<Vec<Candidate>> {
        let mut counts: HashMap<(StoredChoice, &Named), (bool, usize)> = HashMap::new();
        let mut of_kernel =
            self.entries.iter().filter(|entry| entry.key.kernel == key.kernel).peekable();
        of_kernel.peek()?;
        for entry in of_kernel.filter(|entry| !entry.is_confirmed()) {
            let is_same = Key { source: key.source.clone(), ..entry.key.clone() } == *key;
            let (of_key, count) = counts.entry((entry.choice, &entry.parameters)).or_default();
            (*of_key, *count) = (*of_key || is_same, *count + 1);
        }
        let mut ranked: Vec<_> = counts.into_iter().collect();
        ranked.sort_by_key(|(choice, rank)| (Reverse(*rank), *choice));
        let default = space.default().cloned();
        let legal = ranked.into_iter().filter_map(|((choice, named), _)| space.add(named, choice));
        Some(legal.filter(|one| Some(one) != default.as_ref()).take(MOST - 1).collect())
    }
}

impl std::fmt::Display for OtherProfile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// The most candidates of a search. A kernel has at most four distinct choices.
const MOST: usize = 5;
