//! Errors of products.

use crate::product::shape::ProductShape;
use gridguard::cuda::CudaError;

/// Why a product cannot be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ProductError {
    /// The driver cannot be used, or a call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A call of the library failed.
    #[error("{call} returned {name} ({code})")]
    Call { call: &'static str, code: i32, name: String },
    /// A size is outside the library's range.
    #[error("{size} is {given}, cuBLASLt takes 1 to {most}")]
    Size { size: &'static str, given: u64, most: u64 },
    /// The library has no algorithm for the product.
    #[error(
        "cuBLASLt has no algorithm for a {element} product of {rows} x {inner} and {inner} x {columns} \
         with {workspace_bytes} bytes of workspace",
        rows = .shape.rows, inner = .shape.inner, columns = .shape.columns
    )]
    NoAlgorithm { shape: ProductShape, element: &'static str, workspace_bytes: u64 },
    /// There is no algorithm of this index.
    #[error("algorithm is {given}, the product has {count}, counted from 0")]
    Algorithm { given: u64, count: u64 },
    /// A buffer has another size than the shape requires.
    #[error("{tensor} has {given}, the product takes {expected}")]
    Buffer { tensor: &'static str, given: String, expected: String },
    /// Chunks would begin at addresses that are not multiples of 16.
    #[error("{tensor} has {bytes} bytes an item, which is not a multiple of {ALIGNMENT}")]
    MisalignedItems { tensor: &'static str, bytes: u64 },
    /// A bias or residual is missing, or was given to a product without it.
    #[error("{tensor} was {given}, the product was made {expected} it")]
    Operand { tensor: &'static str, given: &'static str, expected: &'static str },
    /// An address is not a multiple of 16.
    #[error("{tensor} is at {address:#x}, which is not a multiple of {ALIGNMENT} bytes")]
    Misaligned { tensor: &'static str, address: u64 },
}

/// The alignment of matrices in bytes, also where a chunk begins.
pub(crate) const ALIGNMENT: u64 = 16;
