//! What somebody who waits for a search can see of it.

use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;

/// Where a search stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Outputs are compared.
    Check,
    /// A few samples of everything.
    Coarse,
    /// More samples of what is not far behind.
    Fine,
    /// Neighbours of the best so far, in a space too large to measure all of it.
    Descent,
    /// The largest chunk within a bound on the time of a launch is closed in on.
    Bisection,
    /// The best few beside the default.
    Finals,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Check => "check",
            Self::Coarse => "coarse",
            Self::Fine => "fine",
            Self::Descent => "descent",
            Self::Bisection => "bisection",
            Self::Finals => "finals",
        })
    }
}

/// One moment of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchProgress<'a> {
    /// Where it stands.
    pub stage: Stage,
    /// What is checked or measured next.
    pub candidate: &'a Candidate,
    /// The fastest so far and its median in nanoseconds.
    pub best: Option<(&'a Candidate, f64)>,
    /// Samples that were taken.
    pub evaluations: u64,
    /// How many there will be in all, by what is known now.
    pub expected: u64,
}

/// Watches a search. `()` looks away.
pub trait Observer {
    /// Before each check and each sample.
    fn progress(&mut self, _progress: &SearchProgress<'_>) {}

    /// A sample was thrown away because the device had lowered its clock; the search now waits.
    fn throttled(&mut self, _pause: Duration) {}
}

impl Observer for () {}
