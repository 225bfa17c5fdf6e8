//! Products of matrices by cuBLASLt as stages of pipelines, row-major as in PyTorch's linear layers.

mod algorithms;
mod check;
pub(crate) mod cublaslt;
mod error;
mod library;
mod operands;
mod shape;
mod stage;
#[cfg(feature = "profile")]
mod tuning;

pub use algorithms::Product;
pub use cublaslt::CublasLt;
pub use error::ProductError;
pub use shape::{ProductElement, ProductShape};
pub use stage::ProductBuffers;
pub(super) use stage::ProductStage;
