//! Products of matrices by cuBLASLt, row-major as in PyTorch's linear layers.

mod error;
mod launch;
mod library;
mod shape;

pub use error::ProductError;
pub use launch::{Algorithm, Product, ProductAddresses, ProductMemory};
pub use shape::{ProductElement, ProductShape};
