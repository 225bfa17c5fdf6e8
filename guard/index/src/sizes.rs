//! Sizes of a launch, and why a verdict is unknown.

use core::fmt;
use std::collections::BTreeMap;

/// A size on which an index depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Size {
    /// The blocks of the grid on axis 0, 1 or 2.
    Grid(usize),
    /// The threads of a block on axis 0, 1 or 2.
    Block(usize),
    /// A parameter of the entry.
    Parameter {
        /// The parameter's number.
        index: usize,
        /// The offset in bytes of the value in the parameter. 0 unless the parameter is a structure.
        offset: u64,
    },
}

/// The known sizes of a launch. Unknown sizes may have any value that a driver takes: at most 65,535 blocks along y and z.
/// Unknown parameters are not negative, and so small that what is computed from parameters alone fits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes(pub(super) BTreeMap<Size, i128>);

impl Sizes {
    /// Sets a size.
    pub fn set(&mut self, size: Size, value: i64) {
        self.0.insert(size, i128::from(value));
    }

    pub(super) fn get(&self, size: Size) -> Option<i128> {
        self.0.get(&size).copied()
    }
}

/// Why it is unknown whether an index wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// An index depends on values in memory.
    Loaded,
    /// The entry calls a function, whose accesses are not followed.
    Call,
    /// An index depends on an instruction that is not followed.
    Instruction,
    /// The bound of a loop is unknown.
    Loop,
    /// A loop has several entrances, or the targets of a branch are not stated.
    ControlFlow,
    /// The entry is too large or its expressions are too deep.
    TooComplex,
}

impl Reason {
    /// A short stable name for programs.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Call => "call",
            Self::Instruction => "instruction",
            Self::Loop => "loop",
            Self::ControlFlow => "control-flow",
            Self::TooComplex => "too-complex",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loaded => "an index depends on a value from memory",
            Self::Call => "the kernel calls a function, whose accesses are not followed",
            Self::Instruction => "an index depends on an instruction that is not followed",
            Self::Loop => "the largest value of a loop's variable is not known",
            Self::ControlFlow => "a loop has several entrances, or a branch has unknown targets",
            Self::TooComplex => "the kernel is too large, or its expressions are too deep",
        })
    }
}
