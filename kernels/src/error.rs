//! What can go wrong around a kernel.

/// Why a kernel was not run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A dimension that the kernel does not take.
    #[error("{dimension} is {given}, the kernel takes {expected}")]
    Dimension {
        /// The dimension.
        dimension: &'static str,
        /// Its size.
        given: u64,
        /// What it takes.
        expected: &'static str,
    },
    /// A shape whose elements cannot be counted in 64 bits.
    #[error("a tensor of shape {shape:?} has more elements than 64 bits count")]
    TooLarge {
        /// The shape.
        shape: Vec<u64>,
    },
    /// A tensor of another length than its shape says.
    #[error("{tensor} has {given} elements, shape {shape:?} has {expected}")]
    Length {
        /// The tensor.
        tensor: &'static str,
        /// The shape.
        shape: Vec<u64>,
        /// Elements of the shape.
        expected: u64,
        /// Elements of the tensor.
        given: u64,
    },
    /// The launch breaks rules that no split mends.
    #[error("{0}")]
    Violations(#[from] gridguard::Violations),
    /// The device code could not be compiled or loaded.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] gridguard::cuda::CudaError),
    /// The launch failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Launch(#[from] gridguard::cuda::LaunchError),
    /// The host backend failed.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Host(#[from] gridguard::Stopped<gridguard::HostError>),
}

#[cfg(feature = "cuda")]
impl From<gridguard::cuda::LoadError> for KernelError {
    fn from(error: gridguard::cuda::LoadError) -> Self {
        Self::Cuda(error.into())
    }
}
