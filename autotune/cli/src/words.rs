//! The words for a GPU: those that completions suggest, and the one nearest to a misspelt name.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use gridguard::{ComputeCapability, catalog};

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
