//! How a GPU is named: the arguments `--gpu` and `--device`, the words that completions suggest, and the word that is
//! nearest to a misspelt one.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::sync::Arc;

use clap::Args;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use gridguard::{ComputeCapability, DeviceLimits, catalog, cuda};

use crate::error::CommandError;

/// The arguments of subcommands that only need limits.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct DeviceChoice {
    /// GPU of the catalogue, by name or alias, for example h200 or rtx-4090; sm_86 or 8.6 for the GPUs of that
    /// compute capability; or any
    #[arg(long, value_name = "NAME", value_parser = Suggested(gpu_words), hide_possible_values = true)]
    pub(crate) gpu: Option<String>,
    /// Ordinal of a device of this machine
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,
}

impl DeviceChoice {
    /// The limits of the chosen device; `None` if none was chosen.
    pub(crate) fn limits(&self) -> Result<Option<Arc<DeviceLimits>>, CommandError> {
        match (&self.gpu, self.device) {
            (Some(name), _) => Ok(Some(catalog::limits(name)?)),
            (None, Some(ordinal)) => Ok(Some(cuda::device_limits(ordinal)?)),
            (None, None) => Ok(None),
        }
    }
}

/// Any text. Completion scripts suggest words for it.
#[derive(Clone)]
pub(crate) struct Suggested(pub(crate) fn() -> Vec<String>);

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}

/// A word for each GPU and compute capability of the catalogue, the latest capability first, and `any`.
pub(crate) fn gpu_words() -> Vec<String> {
    let gpus = catalog::gpus().unwrap_or_default();
    let capabilities: BTreeSet<_> = gpus.iter().map(|gpu| gpu.limits.compute_capability).collect();
    let names = gpus.iter().filter_map(|gpu| gpu.aliases.first().cloned());
    let capabilities = capabilities.into_iter().rev().map(ComputeCapability::sm);
    names.chain(capabilities).chain(["any".to_owned()]).collect()
}

/// The word of `words` that is nearest to `given`, which may be misspelt.
pub(crate) fn nearest<'a>(given: &str, words: &[&'a str]) -> Option<&'a str> {
    const LEAST_SIMILAR: f64 = 0.8;
    const LONGEST: usize = 60;
    let given = Some(given.to_lowercase()).filter(|given| given.len() <= LONGEST)?;
    let rated = words.iter().map(|word| (strsim::jaro_winkler(&given, word), *word));
    let (rating, word) = rated.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (rating >= LEAST_SIMILAR).then_some(word)
}
