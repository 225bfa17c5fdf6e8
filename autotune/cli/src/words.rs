//! The words of options: a size, and a GPU with those that completions suggest and the most similar to a misspelt one.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use gridguard::{ComputeCapability, Dim3, catalog};

/// `X`, `X,Y` or `X,Y,Z`; omitted numbers are 1. Also `(X, Y, Z)` and `X x Y x Z`, as programs and reports print sizes.
pub(crate) fn size(text: &str) -> Result<Dim3, String> {
    let inner = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(text);
    let parts: Result<Vec<u64>, _> =
        inner.split([',', 'x']).map(|part| part.trim().parse()).collect();
    match parts.as_deref() {
        Ok([x]) => Ok(Dim3::new(*x, 1, 1)),
        Ok([x, y]) => Ok(Dim3::new(*x, *y, 1)),
        Ok([x, y, z]) => Ok(Dim3::new(*x, *y, *z)),
        _ => Err("expected one to three numbers, as X,Y,Z".into()),
    }
}

/// A whole number.
pub(crate) fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("expected {WHOLE}"))
}

/// A whole number that is not zero.
pub(crate) fn from_1(text: &str) -> Result<u64, String> {
    whole(text).and_then(|number| match number {
        0 => Err(format!("expected {WHOLE}, of at least 1")),
        _ => Ok(number),
    })
}

/// What is expected where a number is invalid.
pub(crate) const WHOLE: &str = "a whole number, such as 6";

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

/// The words most similar to `given`, which may be misspelt or a part of a word: at most `most`, the best first.
pub(crate) fn similar<'a>(
    given: &str,
    words: impl IntoIterator<Item = &'a str>,
    most: usize,
) -> Vec<&'a str> {
    const LEAST_SIMILAR: f64 = 0.8;
    // Comparing takes time that grows with the product of the lengths.
    const LONGEST: usize = 200;
    let is_short = |text: &str| (1..=LONGEST).contains(&text.len());
    let given = given.to_lowercase();
    let rating = |word: &str| match word.to_lowercase() {
        word if word.contains(&given) => 1.0,
        word => strsim::jaro_winkler(&given, &word),
    };
    let words = words.into_iter().filter(|word| is_short(&given) && is_short(word));
    let mut rated: Vec<_> = words.map(|word| (rating(word), word)).collect();
    rated.retain(|(rating, _)| *rating >= LEAST_SIMILAR);
    rated.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    rated.dedup_by_key(|(_, word)| *word);
    rated.into_iter().map(|(_, word)| word).take(most).collect()
}
