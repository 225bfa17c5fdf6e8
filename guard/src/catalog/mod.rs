//! Limits of well-known GPUs, each number with its source.

pub(crate) mod gpus;

pub use gpus::{CatalogError, Fact, Gpu, Source, gpu, gpus, limits};
// For the fuzz targets.
#[doc(hidden)]
pub use gpus::parse_gpus;
