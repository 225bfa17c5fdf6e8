//! The launch corpus: launches from public issue reports, with their expected verdicts.

use once_cell::sync::OnceCell;
use serde::Deserialize;

use super::gpus::{CatalogError, check_schema};
use crate::plan::check::{CheckRequest, Legality};

/// A reported launch and its expected verdict.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusRow {
    /// Where it was reported: project#number.
    pub report: String,
    /// The kernel.
    pub kernel: String,
    /// How the kernel computes its grid.
    pub formula: String,
    /// The shape that overflowed.
    pub shape: String,
    /// How the report was resolved.
    pub outcome: String,
    /// What was assumed where the report gives no value.
    pub note: String,
    /// The launch.
    pub request: CheckRequest,
    /// The expected verdict under the limits of an NVIDIA H200.
    pub expect: Expected,
}

/// An expected verdict.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Whether the launch is legal.
    pub verdict: Legality,
    /// Rules that the unsplit launch breaks, by id, sorted.
    pub rules: Vec<String>,
    /// Launches of the plan; 0 if rejected or empty.
    pub launches: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    rows: Vec<CorpusRow>,
}

const FILE: &str = "corpus.ron";

/// The launch corpus.
///
/// # Errors
///
/// [`CatalogError`] if the built-in data does not parse.
pub fn corpus() -> Result<&'static [CorpusRow], CatalogError> {
    static ROWS: OnceCell<Result<Vec<CorpusRow>, CatalogError>> = OnceCell::new();
    let rows = ROWS.get_or_init(|| parse_corpus(gridguard_data::CORPUS_RON));
    rows.as_deref().map_err(Clone::clone)
}

/// Parses another corpus in the format of the built-in one.
///
/// # Errors
///
/// [`CatalogError::Syntax`] with the position, [`CatalogError::Inconsistent`] for another schema; both
/// name the file `corpus.ron`.
pub fn parse_corpus(text: &str) -> Result<Vec<CorpusRow>, CatalogError> {
    let file: File =
        ron::from_str(text).map_err(|error| CatalogError::Syntax { file: FILE, error })?;
    check_schema(FILE, file.schema)?;
    Ok(file.rows)
}
