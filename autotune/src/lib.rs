//! Finds the fastest legal way to run a launch, and keeps it in a profile.
//!
//! The way of a tuning: a [`Workload`] says what may be varied, [`Space`] makes legal candidates of
//! it through the guard's planner, a [`Measurer`] checks and times them, `tune` searches, and
//! the outcome becomes an entry of a [`gridguard::profile`].

mod candidate;
mod measurer;
mod sample;
mod workload;

pub use candidate::{Candidate, Configuration, Space};
pub use measurer::{Failure, FailureKind, Measurer};
pub use sample::{Portion, Sample};
pub use workload::Workload;
