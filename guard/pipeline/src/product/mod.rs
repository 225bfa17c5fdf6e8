//! Products of matrices by cuBLASLt as stages of pipelines, row-major as in PyTorch's linear layers.

mod algorithms;
pub(crate) mod cublaslt;
mod error;
mod library;
mod shape;
mod stage;
#[cfg(feature = "profile")]
mod tuning;

pub use algorithms::Product;
pub use cublaslt::CublasLt;
pub use error::ProductError;
pub use shape::{ProductElement, ProductShape};
pub use stage::ProductBuffers;
pub(crate) use stage::ProductStage;
