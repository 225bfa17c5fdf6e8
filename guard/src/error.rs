//! One error type for all of the crate's errors.

use crate::launch::violation::Violations;
use crate::plan::arguments::ArgsError;

/// Any error of this crate, for callers that handle them alike.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request breaks rules.
    #[error(transparent)]
    Violations(#[from] Violations),
    /// The arguments do not fit the kernel or the plan.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// The driver, a device, an image or the compiler.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] crate::cuda::CudaError),
    /// A launch failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Launch(#[from] crate::cuda::LaunchError),
    /// A launch on the host failed.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Host(#[from] crate::plan::run::PartialRun<crate::host::HostError>),
    /// The catalogue's data, or a lookup in it.
    #[cfg(feature = "catalog")]
    #[error(transparent)]
    Catalog(#[from] crate::catalog::CatalogError),
    /// A profile that cannot be read or written.
    #[cfg(feature = "profile")]
    #[error(transparent)]
    Profile(#[from] crate::profile::ProfileError),
}
