//! What profiles say about the launches of this process, and the shapes that they lack.

use std::path::PathBuf;

use gridguard_kernels::Operation;
use gridguard_kernels::temporal_attention::TemporalAttention;
use pyo3::prelude::*;

use crate::error::GridguardError;
use crate::launches::{self, MISSES};

/// The device's ordinal, the sizes, the type and the variant of attention; how a profile matches, and why its
/// entry was not used.
type Choice = (usize, Vec<u64>, String, String, String, Option<String>);
/// A device's ordinal, the file of its user's profile, how many entries its profiles have, and what of them is not used
/// or may be stale.
type Profile = (usize, Option<PathBuf>, usize, Vec<String>);

/// How the launches that were prepared last were chosen.
#[pyfunction]
pub(crate) fn choices() -> Vec<Choice> {
    launches::prepared(|(device, attention), tuned| {
        let sizes = attention.sizes().into_iter().map(|(_, size)| size).collect();
        let variant = Operation::variant(attention);
        let refused = tuned.rejected.as_ref().map(ToString::to_string);
        (*device, sizes, attention.dtypes(), variant, tuned.matched.to_string(), refused)
    })
}

/// The profiles of the devices that were used.
#[pyfunction]
pub(crate) fn profiles() -> Vec<Profile> {
    launches::devices(|ordinal, device| {
        let profile = device.kernels.guard().profile();
        let entries = profile.map_or(0, |profile| profile.entries().len());
        (ordinal, device.profile.clone(), entries, device.notices.clone())
    })
}

/// How many shapes of attention had no exact entry since the last call of `write_misses`.
#[pyfunction]
pub(crate) fn misses() -> usize {
    let is_attention = |kernel: &str| kernel == TemporalAttention::KERNEL;
    MISSES.snapshot().iter().filter(|missed| is_attention(&missed.key.kernel)).count()
}

/// Adds these shapes to a file for `gridguard tune --shapes`.
#[pyfunction]
pub(crate) fn write_misses(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    let written = py.detach(|| MISSES.write(&path));
    written.map(drop).map_err(|error| GridguardError::new_err(error.to_string()))
}

/// Has the next call of each shape read the profiles again.
#[pyfunction]
pub(crate) fn reload_profiles(py: Python<'_>) {
    py.detach(launches::forget);
}
