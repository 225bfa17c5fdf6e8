//! The limits of well-known GPUs, each number with its source, and the corpus of real launches
//! that overflowed.

mod corpus;
mod gpus;

pub use corpus::{CorpusRow, Expected, corpus, parse_corpus};
pub use gpus::{Fact, Gpu, Source, gpu, gpus, parse_gpus};

/// Why the catalogue cannot answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// No GPU of this name or alias.
    #[error("no GPU {name:?} in the catalogue, it has: {}", known.join(", "))]
    UnknownGpu {
        /// The name asked for.
        name: String,
        /// A name for each GPU that there is.
        known: Vec<String>,
    },
    /// The data does not parse.
    #[error("{file}:{error}")]
    Syntax {
        /// The file.
        file: &'static str,
        /// What is wrong and where.
        error: ron::error::SpannedError,
    },
    /// The data contradicts itself.
    #[error("{file}: {what}")]
    Inconsistent {
        /// The file.
        file: &'static str,
        /// What is wrong.
        what: String,
    },
}
