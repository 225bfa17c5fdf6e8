//! One error over those of the rooms.

use crate::launch::violation::Violations;
use crate::plan::arguments::ArgsError;

/// Anything that can go wrong, for callers who do not tell the rooms apart.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request breaks rules.
    #[error(transparent)]
    Violations(#[from] Violations),
    /// The arguments do not fit.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// The driver, a device, an image or the compiler.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] crate::cuda::CudaError),
    /// A launch.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Launch(#[from] crate::cuda::LaunchError),
    /// A launch on the host.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Host(#[from] crate::plan::run::PartialRun<crate::host::HostError>),
    /// The catalogue.
    #[cfg(feature = "catalog")]
    #[error(transparent)]
    Catalog(#[from] crate::catalog::CatalogError),
    /// A profile that cannot be read or written.
    #[cfg(feature = "profile")]
    #[error(transparent)]
    Profile(#[from] crate::profile::ProfileError),
}
