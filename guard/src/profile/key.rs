//! What an entry of a profile is about.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Whether the data of a launch lies in the L2 cache before it is timed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum L2 {
    /// The cache is flushed before each sample.
    #[default]
    Cold,
    /// The same launches run just before.
    Hot,
}

/// How launches reach the device.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Submission {
    /// One by one, from the host.
    #[default]
    Eager,
    /// As a captured graph.
    Graph,
}

/// How a time is taken: part of what it is the time of.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// What the L2 cache holds.
    pub l2: L2,
    /// How launches are submitted.
    pub submission: Submission,
}

/// What the choice is to be good at.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Objective {
    /// The whole batch in the least time.
    #[default]
    Throughput,
    /// The largest chunk whose single launch stays within so many microseconds, for a server that
    /// shares its device.
    Latency {
        /// The most microseconds of one launch.
        max_launch_us: u64,
    },
    /// The whole batch in the least time, within a workspace.
    Memory {
        /// Workspace that an item of a launch needs, in bytes.
        bytes_per_item: u64,
        /// All the workspace there is, in bytes.
        bytes: u64,
    },
}

/// Kernel, code and purpose: what entries of different shapes have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The kernel's name, such as `rms_norm`.
    pub kernel: String,
    /// A hash of the device code, in hexadecimal digits. Code that was edited has no entries.
    pub source: String,
    /// Which of several implementations; empty where there is one.
    pub variant: String,
    /// The types of its tensors, such as `f16` or `f16 i64`.
    pub dtypes: String,
    /// How its times were taken.
    pub policy: Policy,
    /// What its choices are good at.
    pub objective: Objective,
}

impl fmt::Display for Policy {
    /// `cold-eager`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let l2 = match self.l2 {
            L2::Cold => "cold",
            L2::Hot => "hot",
        };
        let submission = match self.submission {
            Submission::Eager => "eager",
            Submission::Graph => "graph",
        };
        write!(f, "{l2}-{submission}")
    }
}

impl fmt::Display for Objective {
    /// `throughput`, `latency 200us`, `memory 1048576 bytes, 64 an item`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throughput => f.write_str("throughput"),
            Self::Latency { max_launch_us } => write!(f, "latency {max_launch_us}us"),
            Self::Memory { bytes_per_item, bytes } => {
                write!(f, "memory {bytes} bytes, {bytes_per_item} an item")
            }
        }
    }
}

impl fmt::Display for Key {
    /// `rms_norm registers f16, cold-eager, throughput`: all but the source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kernel)?;
        for part in [&self.variant, &self.dtypes] {
            if !part.is_empty() {
                write!(f, " {part}")?;
            }
        }
        write!(f, ", {}, {}", self.policy, self.objective)
    }
}
