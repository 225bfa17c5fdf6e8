//! Who checks and times candidates: in this process, or in a child that may die of one.

use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::sample::{Portion, Sample};

/// Why a candidate has no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// The compiled kernel does not allow it after all.
    Illegal,
    /// It does not compile, or the driver refused a launch.
    Launch,
    /// It did not end in time.
    Timeout,
    /// Its output is wrong.
    Mismatch,
    /// It took the context or the process with it.
    Crash,
}

/// A candidate that failed, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct MeasureFailure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// In words.
    pub message: String,
}

/// Checks and times candidates of one problem, on one device.
pub trait Measurer {
    /// Prepares a candidate, runs it once and compares its output. Done once for each, before any
    /// sample.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`]: the candidate is out, others go on.
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure>;

    /// Times a candidate that was checked, `count` times.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
        count: u32,
    ) -> Result<Vec<Sample>, MeasureFailure>;
}
