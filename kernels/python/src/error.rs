//! The exceptions of the package. Each message is the complete report of an error.

use core::fmt::Display;

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
    "A launch is illegal or failed, or this machine cannot be queried. The message is the complete report."
);
create_exception!(
    gridguard,
    UnavailableError,
    GridguardError,
    "The kernels cannot run on this machine. Nothing was launched."
);

/// An error whose report may include a diagnosis.
pub(crate) trait Report: Display {
    /// What the error means in CUDA's terms.
    fn diagnosis(&self) -> Option<Diagnosis> {
        None
    }
}

impl Report for PlanError {}
impl Report for RunError {}

impl Report for CudaError {
    fn diagnosis(&self) -> Option<Diagnosis> {
        Self::diagnosis(self)
    }
}

impl Report for KernelError {
    fn diagnosis(&self) -> Option<Diagnosis> {
        match self {
            Self::Cuda(error) => error.diagnosis(),
            Self::Launch(error) => error.diagnosis(),
            Self::Violations(violations) => violations.diagnosis(),
            _ => None,
        }
    }
}

impl Report for BlockError {
    fn diagnosis(&self) -> Option<Diagnosis> {
        match self {
            Self::Kernel(error) => error.diagnosis(),
            _ => None,
        }
    }
}

/// `UnavailableError`, for an error before the launch.
pub(crate) fn unavailable(error: impl Report) -> PyErr {
    UnavailableError::new_err(report(&error))
}

/// `GridguardError`, for an illegal or failed launch and a machine that cannot be queried.
pub(crate) fn failed(error: impl Report) -> PyErr {
    GridguardError::new_err(report(&error))
}

/// `ValueError`, for a wrong argument.
pub(crate) fn invalid(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn report(error: &impl Report) -> String {
    match error.diagnosis() {
        Some(diagnosis) => format!("{error}\n{diagnosis}"),
        None => error.to_string(),
    }
}
