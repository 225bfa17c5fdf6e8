//! Choices among legal plans: the strategy and the largest chunk.

use core::num::NonZeroU64;

use derive_more::Display;

/// How a plan launches a request.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Strategy {
    /// One launch, as requested.
    Whole,
    /// One launch per chunk of the batch; one unsplit launch if everything fits.
    Chunked,
    /// One launch with the batch axis moved to x. For a rewritten kernel, all blocks flat on x.
    Folded,
    /// Launches of a rewritten kernel on parts of the grid. Blocks read the whole grid's size and index.
    Shifted,
}

/// Which of the legal plans a caller or a profile prefers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct Choice {
    pub(crate) strategy: Option<Strategy>,
    pub(crate) max_items: Option<NonZeroU64>,
}

impl Choice {
    /// The planner's choice: unsplit if legal, else folded if declared, else the fewest chunks of a batch
    /// if declared, else the fewest launches of a rewritten kernel.
    pub const AUTOMATIC: Self = Self { strategy: None, max_items: None };

    /// Chunks of at most `items` items; without a batch, parts of a rewritten kernel of at most as many blocks. Zero
    /// sets no limit.
    pub const fn at_most(items: u64) -> Self {
        Self { strategy: None, max_items: NonZeroU64::new(items) }
    }

    /// Only this strategy. If it is impossible, planning fails instead of using another.
    pub const fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Whether the kernel's own entry may be launched as requested.
    pub(crate) const fn allows_original(self) -> bool {
        !matches!(self.strategy, Some(Strategy::Folded | Strategy::Shifted))
    }

    pub(crate) fn most_items(self) -> u64 {
        self.max_items.map_or(u64::MAX, NonZeroU64::get)
    }

    pub(crate) fn allows(self, strategy: Strategy) -> bool {
        self.strategy.is_none_or(|chosen| chosen == strategy)
    }
}
