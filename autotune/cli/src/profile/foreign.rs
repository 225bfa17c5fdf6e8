//! Finds the key and sizes of a lookup for a kernel that gridguard does not ship, from the profile's entries.

use std::collections::BTreeSet;

use clap::Args;
use gridguard::profile::{Key, Named, Objective, Policy, Profile};
use gridguard_problems::{Error, Problem};

use crate::error::CommandError;
use crate::measure::args;
use crate::measure::target::Target;

/// The key of a lookup, without the kernel.
#[derive(Args)]
pub(super) struct KeyArgs {
    /// Data types of the tensors, for example f16 [default: f16; for other kernels, the types in
    /// the profile]
    #[arg(long, value_name = "TYPES")]
    pub(super) dtype: Option<String>,
    /// Variant of a kernel that is not gridguard's [default: the variant in the profile]
    #[arg(long, value_name = "TEXT")]
    variant: Option<String>,
    /// Source version of a kernel that is not gridguard's [default: the version in the profile]
    #[arg(long, value_name = "TEXT")]
    source: Option<String>,
    /// How times were measured: cold or hot L2 cache, a dash, eager or graph launches [default: cold-eager; for other
    /// kernels, the policy in the profile]
    #[arg(long, value_name = "L2-SUBMISSION", value_parser = args::policy)]
    pub(super) policy: Option<Policy>,
    /// Objective of the choice: throughput, latency:TIME or memory:BYTES:BYTES_PER_ITEM
    #[arg(long, default_value = "throughput", value_parser = args::objective)]
    pub(super) objective: Objective,
}

impl KeyArgs {
    /// Fails if a part of the key is given for a kernel of gridguard.
    pub(super) fn reject(&self, kernel: &str) -> Result<(), CommandError> {
        match (&self.variant, &self.source) {
            (None, None) => Ok(()),
            _ => Err(CommandError::invalid(format_args!(
                "{kernel} is a kernel of gridguard, whose variant and source follow from its sizes: \
                 remove --variant and --source"
            ))),
        }
    }

    /// The matching key of the profile's entries, and the named sizes.
    pub(super) fn find(
        &self,
        kernel: &str,
        sizes: &str,
        profile: &Profile,
        target: &Target,
    ) -> Result<(Key, Named), CommandError> {
        let Self { dtype, variant, source, policy, objective } = self;
        let entries = || profile.entries().map(|(_, entry)| entry);
        let mut of_kernel = entries().filter(|entry| entry.key.kernel == kernel).peekable();
        let Some(first) = of_kernel.peek() else {
            let others: BTreeSet<&str> = entries().map(|entry| &*entry.key.kernel).collect();
            let foreign: Vec<&str> =
                others.into_iter().filter(|name| !Problem::KERNELS.contains(name)).collect();
            let error = Problem::unknown_kernel(kernel);
            return Err(CommandError::invalid(match foreign[..] {
                [] => format!(
                    "{error}; the profile of {target} has entries of no others: name the profile's file with \
                     --profile, or its device with --device and --gpu"
                ),
                _ => format!("{error}; the profile also has entries of {}", foreign.join(", ")),
            }));
        };
        let names = &first.shape;
        let is_wanted =
            |text: &String, wanted: &Option<String>| wanted.as_ref().is_none_or(|one| one == text);
        let keys: BTreeSet<&Key> = of_kernel
            .map(|entry| &entry.key)
            .filter(|key| policy.is_none_or(|one| one == key.policy))
            .filter(|key| key.objective == *objective)
            .filter(|key| is_wanted(&key.dtypes, dtype) && is_wanted(&key.variant, variant))
            .filter(|key| is_wanted(&key.source, source))
            .collect();
        let key = match keys.iter().copied().collect::<Vec<_>>()[..] {
            // No entry matches; the report shows the other entries.
            [] => Key {
                kernel: kernel.to_owned(),
                source: source.clone().unwrap_or_default(),
                variant: variant.clone().unwrap_or_default(),
                dtypes: dtype.clone().unwrap_or_default(),
                policy: policy.unwrap_or_default(),
                objective: *objective,
            },
            [only] => only.clone(),
            ref several => return Err(ambiguous(kernel, several)),
        };
        let sizes = parse(sizes)?;
        let names: Vec<&str> = match profile.size_names(&key) {
            Some(names) => names.iter().map(String::as_str).collect(),
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
        let Key { source, variant, dtypes, policy, .. } = key;
        format!("dtype {dtypes:?}, variant {variant:?}, source {source:?}, policy {policy}")
    });
    let described = described.collect::<Vec<_>>().join("; ");
    let count = keys.len();
    CommandError::invalid(format_args!(
        "the profile has {count} keys of {kernel}: choose one with --dtype, --variant, --source \
         and --policy: {described}"
    ))
}

/// `32768x4096`.
fn parse(sizes: &str) -> Result<Vec<u64>, Error> {
    let size = |size: &str| size.parse().map_err(|_| Error::not_a_size(size));
    sizes.split('x').map(size).collect()
}

const SHOWN_KEYS: usize = 8;
