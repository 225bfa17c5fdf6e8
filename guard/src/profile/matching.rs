//! Kinds of matches between an entry and a shape, and counts of lookups by kind.

use derive_more::Display;
use serde::{Deserialize, Serialize};

/// The origin of an entry, the layer with the highest precedence first.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// A file that the program names.
    Explicit,
    /// The user's own profile.
    User,
    /// A folder shipped with the program.
    Shipped,
    /// A text embedded in the program.
    Embedded,
}

/// How well an entry matches the requested sizes.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[display(rename_all = "lowercase")]
pub enum Match {
    /// The sizes are the same.
    Exact,
    /// A row of the key's decision list decides. The entry is one with the row's choice.
    #[display("row {} of the decision list", row.saturating_add(1))]
    Row {
        /// The index of the row.
        row: usize,
    },
    /// Each pair of sizes is between the same powers of two, or both are 0.
    Bucket,
    /// Each size is within an octave (a factor of two). 0 is within an octave of 0 only.
    #[display(
        "neighbour at {}.{:03} octaves",
        distance_millioctaves / 1000,
        distance_millioctaves % 1000
    )]
    Neighbour {
        /// The distance in thousandths of an octave, summed over the sizes.
        distance_millioctaves: u32,
    },
    /// No entry matches: the planner's default applies.
    #[display("default, because {_0}")]
    Default(DefaultReason),
}

/// Why no entry matches.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DefaultReason {
    /// No profile is loaded.
    #[display("no profile is loaded: load one")]
    NoProfile,
    /// The kernel was not tuned with this variant, these types, and this policy and objective.
    #[display("the kernel was not tuned: tune it")]
    NoEntries,
    /// All entries are for other device code: the kernel was edited since.
    #[display("the kernel was edited since it was tuned: re-tune it")]
    OtherSource,
    /// The entries have another number of sizes.
    #[display("{given} sizes were given, the entries have {expected}: pass {expected} sizes")]
    SizeCount {
        /// Number of sizes of the entries.
        expected: usize,
        /// Number of sizes requested.
        given: usize,
    },
    /// The first size, which counts the items, is 0: there is nothing to launch.
    #[display("there are no items: nothing is launched")]
    ZeroSize,
    /// A size is outside the powers of two that were tuned.
    #[display(
        "size {index} is {size}, outside the tuned range of {} to {}: tune this shape",
        (1_u128 << bits.0) >> 1,
        (1_u128 << bits.1) - 1
    )]
    OutOfRange {
        /// The index of the size.
        index: u32,
        /// The size.
        size: u64,
        /// The bit lengths of the smallest and the largest tuned size.
        bits: (u8, u8),
    },
    /// Nothing beats the default of the entry that matches.
    #[display("it is confirmed on this device ({kind})")]
    Confirmed {
        /// How the entry matches.
        kind: MatchKind,
    },
    /// No entry within the tuned range is within an octave of each size.
    #[display("no tuned shape is within an octave of each size: tune this shape")]
    NoNeighbour,
}

/// The kind of a [`Match`].
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MatchKind {
    /// [`Match::Exact`].
    Exact,
    /// [`Match::Row`].
    Row,
    /// [`Match::Bucket`].
    Bucket,
    /// [`Match::Neighbour`].
    Neighbour,
    /// [`Match::Default`].
    #[default]
    Default,
}

impl Match {
    /// The kind of the match. A [confirmed](DefaultReason::Confirmed) default has the kind of its entry.
    pub const fn kind(self) -> MatchKind {
        match self {
            Self::Default(DefaultReason::Confirmed { kind }) => kind,
            Self::Exact => MatchKind::Exact,
            Self::Row { .. } => MatchKind::Row,
            Self::Bucket => MatchKind::Bucket,
            Self::Neighbour { .. } => MatchKind::Neighbour,
            Self::Default(_) => MatchKind::Default,
        }
    }
}
