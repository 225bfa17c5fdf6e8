//! One tuned shape: what was chosen, how it compares, how that was found.

use core::fmt;
use core::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::plan::choice::{Choice, Strategy};

/// A choice as a profile stores it.
///
/// It never makes a launch legal: the planner takes it within what validation allows, and refuses it
/// where that is not possible.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum StoredChoice {
    /// What the planner does by itself.
    #[default]
    Automatic,
    /// One launch, as requested.
    Whole,
    /// One launch with the batch axis on x.
    Folded,
    /// Launches of a chunk each.
    Chunked {
        /// The most items of a chunk.
        max_items: NonZeroU64,
    },
}

impl fmt::Display for StoredChoice {
    /// `automatic`, `whole`, `folded`, `chunks of 8192`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Automatic => f.write_str("automatic"),
            Self::Whole => f.write_str("whole"),
            Self::Folded => f.write_str("folded"),
            Self::Chunked { max_items } => write!(f, "chunks of {max_items}"),
        }
    }
}

impl From<StoredChoice> for Choice {
    fn from(stored: StoredChoice) -> Self {
        match stored {
            StoredChoice::Automatic => Self::AUTOMATIC,
            StoredChoice::Whole => Self::AUTOMATIC.strategy(Strategy::Whole),
            StoredChoice::Folded => Self::AUTOMATIC.strategy(Strategy::Folded),
            StoredChoice::Chunked { max_items } => {
                Self::at_most(max_items.get()).strategy(Strategy::Chunked)
            }
        }
    }
}

/// Names and values of launch parameters, or of the sizes of a shape, in the kernel's order.
pub type Named = Vec<(String, u64)>;

/// What samples say, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Their median.
    pub median_ns: u64,
    /// Below the median with 97.5 % confidence.
    pub low_ns: u64,
    /// Above the median with 97.5 % confidence.
    pub high_ns: u64,
    /// How many there are.
    pub samples: u64,
}

/// Why sampling ended.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum StopReason {
    /// The relative deviation is as small as asked for.
    #[default]
    Precise,
    /// More samples do not make it smaller.
    Noise,
    /// As many samples as are ever taken.
    Ceiling,
    /// The time was up.
    Timeout,
}

/// How an entry was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// When, as `2026-11-20T12:00:00Z`.
    pub date: String,
    /// The CUDA version of the driver, as `13.0`; empty on the host.
    pub driver: String,
    /// The version of the compiler of the device code, as `13.0`; empty on the host.
    pub compiler: String,
    /// The version of the tuner.
    pub tuner: String,
    /// Candidates that were measured.
    pub candidates: u64,
    /// Candidates that failed: illegal, refused, wrong, out of time, or fatal to their process.
    pub failed: u64,
    /// Samples that were taken of all candidates together, dropped ones included.
    pub samples: u64,
    /// Why the last sampling ended.
    pub stopped: StopReason,
}

/// One tuned shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// What it is about.
    pub key: Key,
    /// The sizes, such as `[("rows", 32768), ("columns", 4096)]`: the items first, one at least. The
    /// others may be 0, such as a pad.
    pub shape: Named,
    /// How to plan it.
    pub choice: StoredChoice,
    /// Launch parameters of the kernel.
    pub parameters: Named,
    /// Launches of the plan.
    pub launches: u64,
    /// Times of the choice.
    pub chosen: Summary,
    /// Times of the default, in the same run.
    pub default: Summary,
    /// How it was found.
    pub found: Provenance,
}
