//! The exceptions of the package. Each message is the complete report of an error.

use core::fmt::Display;

use gridguard_kernels::KernelError;
use gridguard_kernels::temporal_block::BlockError;
use gridguard_report::Diagnose;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(
    gridguard,
    GridguardError,
    PyRuntimeError,
    "A launch is illegal or failed, or this machine cannot be queried. The message is the complete report."
);
create_exception!(
    gridguard,
    UnavailableError,
    GridguardError,
    "The kernels cannot run on this machine. Nothing was launched."
);

/// `UnavailableError`, for an error before the launch.
pub(crate) fn unavailable(error: impl Into<KernelError>) -> PyErr {
    UnavailableError::new_err(report(&error.into()))
}

/// `UnavailableError`, for a block that cannot be made.
pub(crate) fn no_block(error: BlockError) -> PyErr {
    match error {
        BlockError::Kernel(error) => unavailable(error),
        other => UnavailableError::new_err(other.to_string()),
    }
}

/// `GridguardError`, for an illegal or failed launch and a machine that cannot be queried.
pub(crate) fn failed(error: impl Into<KernelError>) -> PyErr {
    GridguardError::new_err(report(&error.into()))
}

/// `GridguardError`, for an error that has no diagnosis.
pub(crate) fn stopped(error: impl Display) -> PyErr {
    GridguardError::new_err(error.to_string())
}

/// `ValueError`, for a wrong argument.
pub(crate) fn invalid(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The message, and what it means in CUDA's terms.
fn report(error: &KernelError) -> String {
    let diagnosis = match error {
        KernelError::Cuda(error) => error.diagnosis(),
        KernelError::Launch(error) => error.diagnosis(),
        KernelError::Violations(violations) => violations.diagnosis(),
        _ => None,
    };
    let Some(diagnosis) = diagnosis else { return error.to_string() };
    format!("{error}\n{diagnosis}")
}
