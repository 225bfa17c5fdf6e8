//! Limits of well-known GPUs, each number with its source.

pub(crate) mod gpus;

pub use gpus::{CatalogError, Gpu, gpu, gpus, limits};
// Parts of a GPU, and the parser for the fuzz targets.
pub use gpus::{Fact, Source, parse_gpus};
