//! Why a block cannot be made.

use gridguard_pipeline::Error;

use crate::error::KernelError;

/// Why a block cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum BlockError {
    /// The kernels do not support the shape or the device, or the weights are of other channels or do not
    /// fit.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A product cannot be made.
    #[cfg(feature = "cuda")]
    #[error("product {stage}: {error}")]
    Product { stage: &'static str, error: Error },
    /// The pipeline cannot be built.
    #[error(transparent)]
    Build(#[from] Error),
}
