//! Limits, verdicts and explanations as the JSON documents that the command writes. Python makes objects of them.

use std::sync::Arc;

use gridguard::catalog;
use gridguard::check::CheckRequest;
use gridguard::{DeviceLimits, cuda};
use gridguard_report::{device_facts, explain_log, scan};
use pyo3::prelude::*;

use crate::error::{failed, invalid};

/// The limits of a GPU in the catalogue, or of a device of this machine.
#[pyfunction]
pub(crate) fn limits(gpu: Option<&str>, device: Option<usize>) -> PyResult<String> {
    json(&*limits_of(gpu, device)?)
}

/// The limits of all GPUs in the catalogue.
#[pyfunction]
pub(crate) fn gpus() -> PyResult<String> {
    let gpus = catalog::gpus().map_err(invalid)?;
    json(&gpus.iter().map(|gpu| &*gpu.limits).collect::<Vec<_>>())
}

/// The verdict on a request in the format of `gridguard check --requests`.
#[pyfunction]
pub(crate) fn check(
    request: &str,
    gpu: Option<&str>,
    device: Option<usize>,
    opt_in: bool,
) -> PyResult<String> {
    let request: CheckRequest = serde_json::from_str(request).map_err(|error| {
        // A position in the JSON text means nothing to the caller.
        let text = error.to_string();
        invalid(text.split(" at line ").next().unwrap_or(&text))
    })?;
    let limits = limits_of(gpu, device)?;
    let verdict = if opt_in { request.check_with_opt_in(&limits) } else { request.check(&limits) };
    json(&verdict)
}

/// The failures in a text, as JSON and as text; and the failure that was assumed, if the text states none.
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
    let known = device.as_deref().map(device_facts).unwrap_or_default();
    let (log, assumed) = scan(text.trim());
    let diagnosis = explain_log(&log, &known, device.as_deref()).map_err(invalid)?;
    Ok((json(&diagnosis)?, diagnosis.to_string(), assumed.map(str::to_owned)))
}

/// A number of bytes, for example `100`, `100KiB` or `2Gi`, as the command reads it.
#[pyfunction]
pub(crate) fn parse_bytes(text: &str) -> PyResult<u64> {
    parse_size::parse_size(text).map_err(invalid)
}

fn limits_of(gpu: Option<&str>, device: Option<usize>) -> PyResult<Arc<DeviceLimits>> {
    match (gpu, device) {
        (Some(_), Some(_)) => Err(invalid("gpu and device exclude each other: pass one, not both")),
        (None, Some(ordinal)) => cuda::device_limits(ordinal).map_err(failed),
        (gpu, None) => catalog::limits(gpu.unwrap_or("any")).map_err(invalid),
    }
}

fn json(document: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(document).map_err(invalid)
}
