//! Limits of well-known GPUs, each with its source, and a corpus of reported launches that overflowed.

mod corpus;
mod gpus;

pub use corpus::{CorpusRow, Expected, corpus, parse_corpus};
pub use gpus::{Fact, Gpu, Source, gpu, gpus, parse_gpus};

/// Why a catalogue lookup or file failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// No GPU has this name or alias.
    #[error("no GPU {name:?} in the catalogue, it has: {}", known.join(", "))]
    UnknownGpu {
        /// The requested name.
        name: String,
        /// A name of each known GPU.
        known: Vec<String>,
    },
    /// A file does not parse.
    #[error("{file}:{error}")]
    Syntax {
        /// The file.
        file: &'static str,
        /// The parser's error with its position.
        error: ron::error::SpannedError,
    },
    /// A file is inconsistent.
    #[error("{file}: {what}")]
    Inconsistent {
        /// The file.
        file: &'static str,
        /// The inconsistency.
        what: String,
    },
}
