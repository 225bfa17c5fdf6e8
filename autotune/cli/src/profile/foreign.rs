//! Finds the key and sizes of a lookup for a kernel that gridguard does not ship, from the profile's entries.

use std::collections::BTreeSet;

use clap::Args;
use gridguard::profile::{Key, Named, Objective, Policy, Profile};
use gridguard_kernels::bench::{Problem, ProblemError};

use crate::error::CommandError;

/// The parts of a key that gridguard knows only for its own kernels.
#[derive(Args)]
pub(super) struct ForeignKey {
    /// Variant of a kernel that is not gridguard's [default: the variant in the profile]
    #[arg(long, value_name = "TEXT")]
    variant: Option<String>,
    /// Source version of a kernel that is not gridguard's [default: the version in the profile]
    #[arg(long, value_name = "TEXT")]
    source: Option<String>,
}

pub(super) struct Wanted<'a> {
    pub(super) kernel: &'a str,
    pub(super) dtypes: Option<&'a str>,
    pub(super) policy: Policy,
    pub(super) objective: Objective,
}

impl ForeignKey {
    /// Fails if a part of the key is given for a kernel of gridguard.
    pub(super) fn reject(&self, kernel: &str) -> Result<(), CommandError> {
        match (&self.variant, &self.source) {
            (None, None) => Ok(()),
            _ => Err(CommandError::Invalid(format!(
                "{kernel} is a kernel of gridguard, whose variant and source follow from its sizes: \
                 remove --variant and --source"
            ))),
        }
    }

    /// The matching key of the profile's entries, and the named sizes.
    pub(super) fn find(
        &self,
        wanted: &Wanted<'_>,
        sizes: &str,
        profile: &Profile,
    ) -> Result<(Key, Named), CommandError> {
        let Wanted { kernel, dtypes, policy, objective } = *wanted;
        let entries = || profile.entries().map(|(_, entry)| entry);
        let mut of_kernel = entries().filter(|entry| entry.key.kernel == kernel).peekable();
        let Some(first) = of_kernel.peek() else {
            let others: BTreeSet<&str> = entries().map(|entry| &*entry.key.kernel).collect();
            let foreign: Vec<&str> =
                others.into_iter().filter(|name| !Problem::KERNELS.contains(name)).collect();
            let error = ProblemError::Kernel { given: kernel.to_owned() };
            return Err(CommandError::Invalid(match foreign[..] {
                [] => format!("{error}; the profile has entries of no others"),
                _ => format!("{error}; the profile also has entries of {}", foreign.join(", ")),
            }));
        };
        let names = &first.shape;
        let is_wanted = |text: &str, wanted: Option<&str>| wanted.is_none_or(|one| one == text);
        let (variant, source) = (self.variant.as_deref(), self.source.as_deref());
        let keys: BTreeSet<&Key> = of_kernel
            .map(|entry| &entry.key)
            .filter(|key| (key.policy, key.objective) == (policy, objective))
            .filter(|key| is_wanted(&key.dtypes, dtypes) && is_wanted(&key.variant, variant))
            .filter(|key| is_wanted(&key.source, source))
            .collect();
        let key = match keys.iter().copied().collect::<Vec<_>>()[..] {
            // No entry matches; the report shows the other entries.
            [] => {
                let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
                let (source, variant, dtypes) = (text(source), text(variant), text(dtypes));
                Key { kernel: kernel.to_owned(), source, variant, dtypes, policy, objective }
            }
            [only] => only.clone(),
            ref several => return Err(ambiguous(kernel, several)),
        };
        let sizes = parse(sizes)?;
        let tuned = profile.tuned(&key);
        let names: Vec<&str> = match &tuned {
            Some(tuned) => tuned.names().iter().map(String::as_str).collect(),
            None => names.iter().map(|(name, _)| name.as_str()).collect(),
        };
        // The lookup reports a wrong number of sizes.
        let name =
            |place: usize| names.get(place).map_or_else(|| place.to_string(), |&name| name.into());
        let shape = sizes.into_iter().enumerate().map(|(place, size)| (name(place), size));
        Ok((key, shape.collect()))
    }
}

fn ambiguous(kernel: &str, keys: &[&Key]) -> CommandError {
    let described = keys.iter().take(SHOWN_KEYS).map(|key| {
        let Key { source, variant, dtypes, .. } = key;
        format!("dtype {dtypes:?}, variant {variant:?}, source {source:?}")
    });
    let described = described.collect::<Vec<_>>().join("; ");
    let count = keys.len();
    CommandError::Invalid(format!(
        "the profile has {count} keys of {kernel}: choose one with --dtype, --variant and --source: \
         {described}"
    ))
}

/// `32768x4096`.
fn parse(sizes: &str) -> Result<Vec<u64>, ProblemError> {
    let size = |size: &str| size.parse().map_err(|_| ProblemError::Size { given: size.to_owned() });
    sizes.split('x').map(size).collect()
}

const SHOWN_KEYS: usize = 8;
