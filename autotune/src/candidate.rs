//! The legal ways to run a launch.

use gridguard::profile::{Named, StoredChoice};
use gridguard::{BatchAxis, LaunchLimits, LaunchRequest, Strategy};
use serde::{Deserialize, Serialize};

/// A kernel with one set of launch parameters: what a candidate is planned from.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Names and values; empty for a kernel that has none.
    pub parameters: Named,
    /// The launch over the whole problem.
    pub request: LaunchRequest,
    /// Its independent items.
    pub batch: BatchAxis,
    /// What device and kernel allow.
    pub limits: LaunchLimits,
}

/// One way to run the launch, legal by the planner's word.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Launch parameters of the kernel.
    pub parameters: Named,
    /// What the planner is asked for.
    pub choice: StoredChoice,
    /// What it answers.
    pub strategy: Strategy,
    /// How many launches that takes.
    pub launches: u64,
    /// Items of the largest one.
    pub largest_chunk: u64,
    /// Threads of a block.
    pub block_threads: u64,
}

/// All candidates of a problem, the default first.
#[derive(Clone, Debug)]
pub struct Space {
    configurations: Vec<Configuration>,
    candidates: Vec<Candidate>,
}
