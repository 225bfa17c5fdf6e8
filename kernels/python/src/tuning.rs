//! How profiles chose the launches of this process, and the shapes without an entry.

use core::hash::Hash;
use std::path::PathBuf;

use gridguard_kernels::temporal_attention::{AttentionBackward, TemporalAttention};
use gridguard_kernels::{Operation, TunedLaunch};
use pyo3::prelude::*;

use crate::error::stopped;
use crate::launches::{self, BACKWARD, DEVICES, LAUNCHES, Launches, MISSES};

/// Device ordinal, sizes, type and variant of an attention launch; how the profile matched, and why its entry was
/// rejected.
type Choice = (usize, Vec<u64>, String, String, String, Option<String>);
/// Device ordinal, file of the user's profile, number of entries, and notices about them.
type Profile = (usize, Option<PathBuf>, usize, Vec<String>);

/// How the prepared launches were chosen: those of attention, the last looked up first, then those of its gradients.
#[pyfunction]
pub(crate) fn choices() -> Vec<Choice> {
    let mut all = choices_of(&LAUNCHES, "");
    all.extend(choices_of(&BACKWARD, "backward "));
    all
}

fn choices_of<O: Operation + Copy + Hash + Eq>(
    table: &Launches<O, TunedLaunch<O>>,
    prefix: &str,
) -> Vec<Choice> {
    let launches = table.all.lock();
    let prepared = launches.iter().filter_map(|((device, operation), launch)| {
        let tuned = launch.get()?.as_ref().ok()?;
        let sizes = operation.sizes().into_iter().map(|(_, size)| size).collect();
        let variant = format!("{prefix}{}", operation.variant());
        let rejected = tuned.rejected.as_ref().map(ToString::to_string);
        Some((*device, sizes, operation.dtypes(), variant, tuned.matched.to_string(), rejected))
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

/// The number of shapes of attention and its gradients without an exact entry since the last call of `write_misses`.
#[pyfunction]
pub(crate) fn misses() -> usize {
    let is_attention =
        |kernel: &str| [TemporalAttention::KERNEL, AttentionBackward::KERNEL].contains(&kernel);
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
