//! One time that was measured.

use serde::{Deserialize, Serialize};

/// What of a plan is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Portion {
    /// All its launches, one after another.
    Sequence,
    /// Its largest launch alone, which need not be its first or last.
    LargestLaunch,
}

/// One time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Nanoseconds; positive and finite.
    pub time_ns: f64,
    /// The clock of the multiprocessors while it was taken, in MHz, where the device tells.
    pub clock_mhz: Option<f64>,
}
