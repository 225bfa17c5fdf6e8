//! Launches from public issue reports, with the verdicts that they deserve.

use once_cell::sync::OnceCell;
use serde::Deserialize;

use super::CatalogError;
use crate::plan::check::{CheckRequest, Legality};

/// A launch that someone reported, and what should become of it.
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
    /// What became of the report.
    pub outcome: String,
    /// What was assumed where the report is silent.
    pub note: String,
    /// The launch.
    pub request: CheckRequest,
    /// The verdict that it deserves under the limits of an NVIDIA H200.
    pub expect: Expected,
}

/// An expected verdict.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The outcome.
    pub verdict: Legality,
    /// Rules that the unsplit launch breaks, by id, sorted.
    pub rules: Vec<String>,
    /// Launches of the plan; 0 where rejected or nothing is to be done.
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
/// [`CatalogError`] where the data that was built in does not parse.
pub fn corpus() -> Result<&'static [CorpusRow], CatalogError> {
    static ROWS: OnceCell<Result<Vec<CorpusRow>, CatalogError>> = OnceCell::new();
    let rows = ROWS.get_or_init(|| parse_corpus(gridguard_data::CORPUS_RON));
    rows.as_deref().map_err(Clone::clone)
}

/// The rows of a corpus of one's own, in the layout of the one that is built in.
///
/// # Errors
///
/// [`CatalogError::Syntax`] with the place, [`CatalogError::Inconsistent`] for another schema; both
/// speak of `corpus.ron`.
pub fn parse_corpus(text: &str) -> Result<Vec<CorpusRow>, CatalogError> {
    let file: File =
        ron::from_str(text).map_err(|error| CatalogError::Syntax { file: FILE, error })?;
    super::gpus::check_schema(FILE, file.schema)?;
    Ok(file.rows)
}
