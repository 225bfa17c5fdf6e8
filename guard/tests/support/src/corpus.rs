//! The launch corpus: launches from public issue reports, with their expected verdicts.

use std::sync::OnceLock;

use gridguard::check::{CheckRequest, Legality};
use serde::Deserialize;

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
    /// What was assumed for values that the report does not give.
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

/// The corpus in `bench-data`.
#[must_use]
pub fn corpus() -> &'static [CorpusRow] {
    static ROWS: OnceLock<Vec<CorpusRow>> = OnceLock::new();
    ROWS.get_or_init(|| parse_corpus(gridguard_data::CORPUS_RON).expect("the corpus parses"))
}

/// Parses a corpus.
///
/// # Errors
///
/// A message with the position in the text, or about the schema.
pub fn parse_corpus(text: &str) -> Result<Vec<CorpusRow>, String> {
    let File { schema, rows } =
        ron::from_str(text).map_err(|error| format!("corpus.ron:{error}"))?;
    if schema == 1 { Ok(rows) } else { Err(format!("corpus.ron: unknown schema {schema}")) }
}
