//! How a request may be served, and what the caller or a profile prefers.

use core::num::NonZeroU64;

/// How a plan gets the request through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Strategy {
    /// One launch, as requested.
    Whole,
    /// Launches of a chunk of the batch each; one whole launch where everything fits.
    Chunked,
    /// One launch with the batch axis moved to x.
    Folded,
}

impl core::fmt::Display for Strategy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Whole => "whole",
            Self::Chunked => "chunked",
            Self::Folded => "folded",
        })
    }
}

/// What the caller or a profile prefers among the legal plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct Choice {
    pub(crate) strategy: Option<Strategy>,
    pub(crate) max_items: Option<NonZeroU64>,
}

impl Choice {
    /// The planner's own: whole where legal, else folded where declared, else the fewest chunks.
    pub const AUTOMATIC: Self = Self { strategy: None, max_items: None };

    /// Chunks of at most `items`; zero asks for nothing.
    pub const fn at_most(items: u64) -> Self {
        Self { strategy: None, max_items: NonZeroU64::new(items) }
    }

    /// Only this strategy: a plan that cannot have it is refused, not replaced.
    pub const fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    pub(crate) fn allows(self, strategy: Strategy) -> bool {
        self.strategy.is_none_or(|chosen| chosen == strategy)
    }
}
