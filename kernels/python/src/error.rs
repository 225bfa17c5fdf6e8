//! The exceptions of the package, with whole reports as their messages.

use core::fmt::Display;

use gridguard::catalog::CatalogError;
use gridguard::cuda::CudaError;
use gridguard::diagnose::Diagnosis;
use gridguard_kernels::KernelError;
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
