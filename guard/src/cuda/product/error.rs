//! Errors of products.

use super::shape::{ProductElement, ProductShape};
use crate::cuda::error::CudaError;
use crate::cuda::product::cublaslt::CublasLtUnavailable;

/// Why a product could not be made or launched.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProductError {
    /// cuBLASLt cannot be used.
    #[error(transparent)]
    Unavailable(#[from] CublasLtUnavailable),
    /// The driver cannot be used, or a call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A call of the library failed.
    #[error("{call} returned {name} ({code})")]
    Call {
        /// The call.
        call: &'static str,
        /// The `cublasStatus_t`.
        code: i32,
        /// Its name.
        name: String,
    },
    /// A size is outside the library's range.
    #[error("{size} is {given}, cuBLASLt takes 1 to {most}")]
    Size {
        /// The size: `rows`, `inner` or `columns`.
        size: &'static str,
        /// Its value.
        given: u64,
        /// The largest one.
        most: u64,
    },
    /// The library has no algorithm for the product.
    #[error("cuBLASLt has no algorithm for {shape:?} with {workspace_bytes} bytes of workspace")]
    NoAlgorithm {
        /// The product.
        shape: ProductShape,
        /// The most workspace that was allowed.
        workspace_bytes: u64,
    },
    /// There is no algorithm of this index.
    #[error("algorithm is {given}, the product has {count}, counted from 0")]
    Algorithm {
        /// The index.
        given: u64,
        /// How many there are.
        count: u64,
    },
    /// The memory has another size than the shape requires.
    #[error("{tensor} has {given} bytes, the product takes {expected}")]
    Length {
        /// The tensor.
        tensor: &'static str,
        /// Its bytes.
        given: u64,
        /// Those that the product takes.
        expected: u64,
    },
    /// A buffer of a pipeline has another size than the shape requires.
    #[error("{tensor} has {given}, the product takes {expected}")]
    Buffer {
        /// The tensor.
        tensor: &'static str,
        /// Its bytes, of an item or for every chunk.
        given: String,
        /// Those that the product takes.
        expected: String,
    },
    /// Chunks of a pipeline would begin at addresses that are no multiples of 16.
    #[error("{tensor} has {bytes} bytes an item, which is not a multiple of {ALIGNMENT}")]
    MisalignedItems {
        /// The tensor.
        tensor: &'static str,
        /// Bytes of an item.
        bytes: u64,
    },
    /// The element type of memory is not the product's.
    #[error("memory has elements of {given}, the product of {expected}")]
    Element {
        /// The type of the elements of memory.
        given: ProductElement,
        /// The type of the elements of the product.
        expected: ProductElement,
    },
    /// A bias or residual is missing, or was given to a product without it.
    #[error("{tensor} was {given}, the product was made {expected} it")]
    Operand {
        /// `bias` or `residual`.
        tensor: &'static str,
        /// `given` or `not given`.
        given: &'static str,
        /// `with` or `without`.
        expected: &'static str,
    },
    /// An address is not a multiple of 16.
    #[error("{tensor} is at {address:#x}, which is not a multiple of {ALIGNMENT} bytes")]
    Misaligned {
        /// The tensor.
        tensor: &'static str,
        /// Its address.
        address: u64,
    },
    /// The workspace is smaller than the algorithm needs.
    #[error("the workspace has {given} bytes, algorithm {algorithm} needs {needed}")]
    Workspace {
        /// Its bytes.
        given: u64,
        /// The index of the algorithm.
        algorithm: u64,
        /// Bytes that it needs.
        needed: u64,
    },
    /// The stream, or memory, is of another context than the product.
    #[error("{what} is of another context than the product")]
    OtherContext {
        /// `the stream` or `memory`.
        what: &'static str,
    },
    /// The stream is being captured, which a graph's memory may not outlive.
    #[error(
        "the stream is being captured: promise with `capture_launches` that memory outlives the graph"
    )]
    Captured,
}

/// What matrices are aligned to, in bytes: rows of whole vectors, also where a chunk begins.
pub(super) const ALIGNMENT: u64 = 16;
