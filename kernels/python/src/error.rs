//! The exceptions of the package, with whole reports as their messages.

use core::fmt::Display;

use cudarc::driver::DriverError;
use gridguard::catalog::CatalogError;
use gridguard::cuda::CudaError;
use gridguard::diagnose::Diagnosis;
use gridguard::pipeline::{PlanError, RunError};
use gridguard_kernels::KernelError;
use gridguard_kernels::temporal_block::BlockError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(
    gridguard,
    GridguardError,
    PyRuntimeError,
    "A launch that is not legal or that failed, or a machine that cannot be queried, with the whole report."
);
create_exception!(
    gridguard,
    UnavailableError,
    GridguardError,
    "The kernels cannot run on this machine: nothing was launched."
);

/// Why attention was not computed.
pub(crate) enum AttentionError {
    /// The kernel cannot be compiled, loaded or planned: nothing was launched.
    Unavailable(KernelError),
    /// The launch failed.
    Failed(KernelError),
}

impl From<AttentionError> for PyErr {
    fn from(error: AttentionError) -> Self {
        match error {
            AttentionError::Unavailable(error) => UnavailableError::new_err(kernel_report(&error)),
            AttentionError::Failed(error) => GridguardError::new_err(kernel_report(&error)),
        }
    }
}

/// Why a block was not computed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlockFailure {
    /// The block cannot be made here: nothing was launched.
    #[error(transparent)]
    Unavailable(#[from] BlockError),
    /// There is no such device, or no stream of it.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// No chunk fits the budget, or none is legal: nothing was launched.
    #[error(transparent)]
    NotPlanned(#[from] PlanError),
    /// It was not prepared on this thread.
    #[error("the block is not prepared on this thread")]
    NotPrepared,
    /// The run failed.
    #[error(transparent)]
    Failed(#[from] RunError),
}

impl BlockFailure {
    pub(crate) fn stream(error: DriverError) -> Self {
        Self::Failed(RunError::Device(error.into()))
    }
}

impl From<KernelError> for BlockFailure {
    fn from(error: KernelError) -> Self {
        Self::Unavailable(error.into())
    }
}

impl From<BlockFailure> for PyErr {
    fn from(error: BlockFailure) -> Self {
        match &error {
            BlockFailure::Unavailable(BlockError::Kernel(error)) => {
                UnavailableError::new_err(kernel_report(error))
            }
            BlockFailure::Device(error) => {
                UnavailableError::new_err(report(error, error.diagnosis()))
            }
            BlockFailure::Unavailable(_) => UnavailableError::new_err(error.to_string()),
            _ => GridguardError::new_err(error.to_string()),
        }
    }
}

pub(crate) fn of_catalog(error: &CatalogError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

pub(crate) fn of_cuda(error: &CudaError) -> PyErr {
    GridguardError::new_err(report(error, error.diagnosis()))
}

fn kernel_report(error: &KernelError) -> String {
    let diagnosis = match error {
        KernelError::Cuda(error) => error.diagnosis(),
        KernelError::Launch(error) => error.diagnosis(),
        KernelError::Violations(violations) => violations.diagnosis(),
        _ => None,
    };
    report(error, diagnosis)
}

/// The error, and what it means in CUDA's terms.
fn report(error: &impl Display, diagnosis: Option<Diagnosis>) -> String {
    match diagnosis {
        Some(diagnosis) => format!("{error}\n{diagnosis}"),
        None => error.to_string(),
    }
}
