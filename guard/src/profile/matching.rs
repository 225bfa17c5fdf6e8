//! How an entry serves a shape, or why none does.

use core::fmt;

use serde::{Deserialize, Serialize};

/// How well an entry matches the sizes that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// The same sizes.
    Exact,
    /// Every size has the same power of two below it, or both are 0.
    Bucket,
    /// Every size is within an octave; 0 is within one of 0 alone.
    Neighbour {
        /// Thousandths of an octave, summed over the sizes.
        distance_millioctaves: u32,
    },
    /// No entry serves: the planner does as without a profile.
    Default(Reason),
}

/// Why no entry serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// There is no profile.
    NoProfile,
    /// The kernel was never tuned, or not in this variant, with these types, for this purpose.
    NoEntries,
    /// All entries are for other code: the kernel was edited since.
    OtherSource,
    /// The entries have another number of sizes.
    SizeCount {
        /// How many the entries have.
        expected: usize,
        /// How many were asked for.
        given: usize,
    },
    /// The first size, which counts the items, is 0: nothing is launched.
    ZeroSize,
    /// A size lies beyond the powers of two that were tuned.
    OutOfRange {
        /// Which of the sizes, from 0.
        size: usize,
    },
    /// The range was tuned, but nothing within an octave of each size.
    NoNeighbour,
}

/// The kinds of a match, for counting.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum MatchKind {
    /// [`Match::Exact`].
    Exact,
    /// [`Match::Bucket`].
    Bucket,
    /// [`Match::Neighbour`].
    Neighbour,
    /// [`Match::Default`].
    #[default]
    Default,
}

impl Match {
    /// Its kind.
    #[must_use]
    pub const fn kind(self) -> MatchKind {
        match self {
            Self::Exact => MatchKind::Exact,
            Self::Bucket => MatchKind::Bucket,
            Self::Neighbour { .. } => MatchKind::Neighbour,
            Self::Default(_) => MatchKind::Default,
        }
    }
}

impl fmt::Display for MatchKind {
    /// `exact`, `bucket`, `neighbour`, `default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Bucket => "bucket",
            Self::Neighbour => "neighbour",
            Self::Default => "default",
        })
    }
}

impl fmt::Display for Match {
    /// `exact`, `bucket`, `neighbour at 0.585 octaves`, `default, ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Neighbour { distance_millioctaves: distance } => {
                write!(f, "neighbour at {}.{:03} octaves", distance / 1000, distance % 1000)
            }
            Self::Default(reason) => write!(f, "default, {reason}"),
            Self::Exact | Self::Bucket => self.kind().fmt(f),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProfile => f.write_str("there is no profile: load one"),
            Self::NoEntries => f.write_str("the kernel was not tuned: tune it"),
            Self::OtherSource => {
                f.write_str("the kernel was edited since it was tuned: tune it anew")
            }
            Self::SizeCount { expected, given } => {
                write!(f, "{given} sizes were given, the entries have {expected}: give as many")
            }
            Self::ZeroSize => f.write_str("there are no items: nothing is launched"),
            Self::OutOfRange { size } => {
                write!(f, "size {size} is out of the tuned range: tune this shape")
            }
            Self::NoNeighbour => {
                f.write_str("no tuned shape is within an octave of each size: tune this shape")
            }
        }
    }
}
