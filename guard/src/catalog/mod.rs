//! Limits of well-known GPUs, each with its source, and a corpus of reported launches that overflowed.

mod corpus;
mod gpus;

pub use corpus::{CorpusRow, Expected, corpus, parse_corpus};
pub use gpus::{CatalogError, Fact, Gpu, Source, gpu, gpus, limits, parse_gpus};
