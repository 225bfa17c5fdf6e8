//! How profiles chose the launches of this process, and the shapes without an entry.

use std::path::PathBuf;

use gridguard_kernels::Operation;
use gridguard_kernels::temporal_attention::TemporalAttention;
use pyo3::prelude::*;

use crate::error::stopped;
use crate::launches::{self, DEVICES, LAUNCHES, MISSES};

/// Device ordinal, sizes, type and variant of an attention launch; how the profile matched, and why its entry was
/// rejected.
type Choice = (usize, Vec<u64>, String, String, String, Option<String>);
/// Device ordinal, file of the user's profile, number of entries, and notices about them.
type Profile = (usize, Option<PathBuf>, usize, Vec<String>);

/// How the prepared launches were chosen, the last used first.
#[pyfunction]
pub(crate) fn choices() -> Vec<Choice> {
    let launches = LAUNCHES.lock();
    let prepared = launches.iter().filter_map(|((device, attention), launch)| {
        let tuned = launch.get()?.as_ref().ok()?;
        let sizes = attention.sizes().into_iter().map(|(_, size)| size).collect();
        let variant = Operation::variant(attention);
        let rejected = tuned.rejected.as_ref().map(ToString::to_string);
        Some((*device, sizes, attention.dtypes(), variant, tuned.matched.to_string(), rejected))
    });
    prepared.collect()
}

#[pyfunction]
pub(crate) fn profiles() -> Vec<Profile> {
    let devices = DEVICES.lock();
    let opened = devices.iter().filter_map(|(ordinal, device)| {
        let device = device.get()?;
        let entries = device.kernels.guard().profile().map_or(0, |profile| profile.entries().len());
        Some((*ordinal, device.profile.clone(), entries, device.notices.clone()))
    });
    opened.collect()
}

/// The number of attention shapes without an exact entry since the last call of `write_misses`.
#[pyfunction]
pub(crate) fn misses() -> usize {
    let is_attention = |kernel: &str| kernel == TemporalAttention::KERNEL;
    MISSES.snapshot().iter().filter(|missed| is_attention(&missed.key.kernel)).count()
}

/// Adds these shapes to a file for `gridguard tune --shapes`.
#[pyfunction]
pub(crate) fn write_misses(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    let written = py.detach(|| MISSES.write(&path));
    written.map(drop).map_err(stopped)
}

#[pyfunction]
pub(crate) fn reload_profiles(py: Python<'_>) {
    py.detach(launches::reset);
}
