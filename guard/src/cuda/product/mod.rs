//! Products of matrices by cuBLASLt, row-major as in PyTorch's linear layers.

mod check;
pub(crate) mod cublaslt;
mod error;
mod launch;
mod library;
mod shape;
mod stage;
#[cfg(feature = "profile")]
mod tuning;

pub use error::ProductError;
pub use launch::{Algorithm, Product, ProductAddresses, ProductMemory};
pub use shape::{ProductElement, ProductNumber, ProductShape};
pub use stage::ProductBuffers;
pub(super) use stage::ProductStage;
#[cfg(feature = "profile")]
pub use tuning::PRODUCT_ALGORITHM;
