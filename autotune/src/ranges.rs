//! Ranges of parameters and chunks, and their candidates.

use std::collections::BTreeSet;

use gridguard::Strategy;
use gridguard::profile::{Named, StoredChoice};

use crate::candidate::{Candidate, MAX_CHUNK_SIZES, chunked, halves};
use crate::error::Error;

/// The sizes of a problem, the values of its parameters, and its chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// The number of items first.
    pub(crate) sizes: Named,
    pub(crate) parameters: Vec<(String, Vec<u64>)>,
    /// In items, each at most all of them; empty if the launch is not split.
    pub(crate) chunks: Vec<u64>,
}

impl Ranges {
    /// Checks the ranges. `chunks` is `None` if the launch is not split, and empty for all items, half of them, a
    /// quarter, and so on.
    pub(crate) fn new(
        sizes: Named,
        parameters: Vec<(String, Vec<u64>)>,
        chunks: Option<Vec<u64>>,
    ) -> Result<Self, Error> {
        let items = match sizes.first() {
            Some((_, items @ 1..)) => *items,
            _ => {
                return Err(Error::input(
                    "there are no items: the first size counts them and must be at least 1",
                ));
            }
        };
        let mut names = BTreeSet::new();
        let of_parameters = parameters.iter().map(|(name, _)| name);
        for name in sizes.iter().map(|(name, _)| name).chain(of_parameters) {
            if !is_name(name) || name == CHUNK {
                return Err(Error::input(format!(
                    "{name:?} cannot be a name: use letters, digits and _, and not \"chunk\""
                )));
            }
            if !names.insert(name.as_str()) {
                return Err(Error::input(format!("{name} is given twice: remove one")));
            }
        }
        let given = parameters.iter().map(|(name, values)| (name.as_str(), values));
        let listed = chunks.iter().filter(|chunks| !chunks.is_empty());
        for (name, values) in given.chain(listed.map(|chunks| (CHUNK, chunks))) {
            let distinct: BTreeSet<&u64> = values.iter().collect();
            let is_invalid = name == CHUNK && distinct.contains(&0);
            if values.is_empty() || distinct.len() < values.len() || is_invalid {
                return Err(Error::input(format!(
                    "the values of {name} are not at least one, each once, and chunks of at least 1 item"
                )));
            }
        }
        let mut chunks = match chunks {
            Some(chunks) if chunks.is_empty() => halves(items).take(MAX_CHUNK_SIZES).collect(),
            chunks => chunks.unwrap_or_default(),
        };
        let mut seen = BTreeSet::new();
        chunks.iter_mut().for_each(|chunk| *chunk = (*chunk).min(items));
        chunks.retain(|chunk| seen.insert(*chunk));
        let counts = parameters.iter().map(|(_, values)| values.len());
        let count = counts.chain([chunks.len().max(1)]).try_fold(1_usize, usize::checked_mul);
        if count.is_none_or(|count| count > MAX_CANDIDATES) {
            return Err(Error::input(format!(
                "there are more than {MAX_CANDIDATES} candidates: give fewer values"
            )));
        }
        Ok(Self { sizes, parameters, chunks })
    }

    pub(crate) fn items(&self) -> u64 {
        self.sizes.first().map_or(0, |(_, items)| *items)
    }

    /// The names of the parameters.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.parameters.iter().map(|(name, _)| name)
    }

    /// Every combination of the parameters' values, the first values first.
    pub(crate) fn sets(&self) -> Vec<Named> {
        let mut sets = vec![Named::new()];
        for (name, values) in &self.parameters {
            let extended = |set: &Named| {
                let set = set.clone();
                values.iter().map(move |value| {
                    set.iter().cloned().chain([(name.clone(), *value)]).collect::<Named>()
                })
            };
            sets = sets.iter().flat_map(extended).collect();
        }
        sets
    }

    /// All candidates, the default first. Their launches are not planned.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let items = self.items();
        let of_chunk = |chunk: u64| match chunk < items {
            true => (chunked(chunk), Strategy::Chunked, chunk),
            false => (StoredChoice::Whole, Strategy::Whole, chunk),
        };
        let mut choices: Vec<_> = self.chunks.iter().copied().map(of_chunk).collect();
        if choices.is_empty() {
            choices.push((StoredChoice::Automatic, Strategy::Whole, items));
        }
        let candidate = |parameters: &Named, (choice, strategy, largest_chunk)| Candidate {
            choice,
            strategy,
            launches: items.div_ceil(largest_chunk),
            ..Candidate::whole(parameters.clone(), largest_chunk)
        };
        let sets = self.sets();
        let of_set = |set| choices.iter().map(move |choice| candidate(set, *choice));
        sets.iter().flat_map(of_set).collect()
    }
}

/// Whether `text` is a letter or `_`, then letters, digits and `_`.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `; did you mean block?` for the most similar of `names`; nothing if none is similar.
pub(crate) fn did_you_mean<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> String {
    let rated = names.map(|name| (strsim::jaro_winkler(given, name), name));
    let nearest = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let similar = nearest.filter(|(rating, _)| *rating >= LEAST_SIMILAR);
    similar.map_or_else(String::new, |(_, name)| format!("; did you mean {name}?"))
}

const LEAST_SIMILAR: f64 = 0.8;
pub(crate) const CHUNK: &str = "chunk";
/// A candidate may take a process of its own, so a larger search would not end.
const MAX_CANDIDATES: usize = 4096;
