//! What the command writes, as JSON, for the Python classes.

use std::sync::Arc;

use gridguard::catalog;
use gridguard::check::CheckRequest;
use gridguard::diagnose::Evidence;
use gridguard::{DeviceLimits, cuda};
use gridguard_report::{ExplainedLog, scan};
use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{of_catalog, of_cuda};

/// The limits of a GPU of the catalogue, or of a device of this machine.
#[pyfunction]
pub(crate) fn limits(gpu: Option<&str>, device: Option<usize>) -> PyResult<String> {
    json(&*limits_of(gpu, device)?)
}

/// The limits of all GPUs of the catalogue.
#[pyfunction]
pub(crate) fn gpus() -> PyResult<String> {
    let gpus = catalog::gpus().map_err(|error| of_catalog(&error))?;
    json(&gpus.iter().map(|gpu| &*gpu.limits).collect::<Vec<_>>())
}

/// The verdict about a request as `gridguard check --requests` reads it.
#[pyfunction]
pub(crate) fn check(
    request: &str,
    gpu: Option<&str>,
    device: Option<usize>,
    opt_in: bool,
) -> PyResult<String> {
    let request: CheckRequest = serde_json::from_str(request).map_err(invalid)?;
    let limits = limits_of(gpu, device)?;
    let verdict = if opt_in { request.check_with_opt_in(&limits) } else { request.check(&limits) };
    json(&verdict)
}

/// The failures in a text as JSON and as text, and the one that was assumed if the text states none.
#[pyfunction]
pub(crate) fn explain(
    text: &str,
    gpu: Option<&str>,
    device: Option<usize>,
) -> PyResult<(String, String, Option<String>)> {
    let device = match (gpu, device) {
        (None, None) => None,
        (gpu, device) => Some(limits_of(gpu, device)?),
    };
    let evidence = device.as_deref().map(Evidence::from).unwrap_or_default();
    let (log, assumed) = scan(text.trim());
    let explained = ExplainedLog::new(&log, &evidence, device.as_deref());
    let explained = explained.map_err(|error| of_catalog(&error))?;
    Ok((json(&explained)?, explained.to_string(), assumed.map(|failure| failure.to_string())))
}

/// A number of bytes such as `100`, `100KiB` or `2Gi`, as the command reads it.
#[pyfunction]
pub(crate) fn parse_bytes(text: &str) -> PyResult<u64> {
    parse_size::parse_size(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn limits_of(gpu: Option<&str>, device: Option<usize>) -> PyResult<Arc<DeviceLimits>> {
    match (gpu, device) {
        (Some(_), Some(_)) => Err(PyValueError::new_err("give a GPU or a device, not both")),
        (None, Some(ordinal)) => cuda::device_limits(ordinal).map_err(|error| of_cuda(&error)),
        (gpu, None) => catalog::limits(gpu.unwrap_or("any")).map_err(|error| of_catalog(&error)),
    }
}

fn json(document: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(document).map_err(invalid)
}

fn invalid(error: serde_json::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
