//! Why an entry keeps only its original.

use core::fmt;

use crate::error::Position;

/// Why no forms of an entry are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// The name that the reason is about: an instruction, a register, a function, a parameter.
    pub subject: String,
    /// The function that it stands in: the entry, or one that the entry calls.
    pub function: String,
    /// Where it stands.
    pub at: Position,
}

/// What keeps an entry from being split without knowledge of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// It synchronizes its grid, which must then be one cooperative launch.
    GridSynchronization,
    /// It uses thread block clusters, which are counted within one launch.
    Cluster,
    /// It waits for, or triggers, a programmatic dependent launch.
    DependentLaunch,
    /// It launches kernels, or uses another function of the device runtime.
    DeviceLaunch,
    /// It reads the identity of its grid, and each chunk is a grid.
    GridId,
    /// It calls a function by address, and which functions may be called is not stated.
    IndirectCall,
    /// It calls a function by address, and one of those that may be called reads the grid.
    IndirectCallReadsGrid,
    /// It calls a function that is not in this text.
    ExternalFunction,
    /// It reads a block index or grid size in fewer than 32 bits, which a larger grid would exceed.
    NarrowRead,
    /// It reads a block index or grid size by an instruction that is not known to.
    UnknownRead,
    /// It calls in a form that is not known.
    UnknownCall,
    /// It declares a name that is a special register's.
    HiddenRegister,
    /// It declares a global variable in its body, which its forms would not share.
    OwnVariable,
    /// It has a directive that is not known to hold for its forms.
    UnknownDirective,
    /// A parameter is of a type whose size is not known.
    UnknownParameter,
    /// The added parameter would exceed the parameter limit of the PTX version and target.
    ParameterLimit,
}

impl Reason {
    /// A short stable name for programs.
    pub const fn id(self) -> &'static str {
        match self {
            Self::GridSynchronization => "grid-synchronization",
            Self::Cluster => "cluster",
            Self::DependentLaunch => "dependent-launch",
            Self::DeviceLaunch => "device-launch",
            Self::GridId => "grid-id",
            Self::IndirectCall => "indirect-call",
            Self::IndirectCallReadsGrid => "indirect-call-reads-grid",
            Self::ExternalFunction => "external-function",
            Self::NarrowRead => "narrow-read",
            Self::UnknownRead => "unknown-read",
            Self::UnknownCall => "unknown-call",
            Self::HiddenRegister => "hidden-register",
            Self::OwnVariable => "own-variable",
            Self::UnknownDirective => "unknown-directive",
            Self::UnknownParameter => "unknown-parameter",
            Self::ParameterLimit => "parameter-limit",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::GridSynchronization => {
                "is for grid synchronization, which needs one cooperative launch"
            }
            Self::Cluster => "uses thread block clusters, which are counted within one launch",
            Self::DependentLaunch => "controls a programmatic dependent launch",
            Self::DeviceLaunch => "is a function of the device runtime, which launches kernels",
            Self::GridId => "identifies the grid, and each chunk is a grid of its own",
            Self::IndirectCall => {
                "is called by address, and the functions that it may be are not stated"
            }
            Self::IndirectCallReadsGrid => {
                "is called by address and reads a block index or the grid size"
            }
            Self::ExternalFunction => "is not defined in this text and may read a block index",
            Self::NarrowRead => "is read in fewer than 32 bits, which a larger grid would exceed",
            Self::UnknownRead => "is read by an instruction that is not known to",
            Self::UnknownCall => "is called in an unknown form",
            Self::HiddenRegister => "is declared here, but is the name of a special register",
            Self::OwnVariable => "is a variable that forms of the entry would not share with it",
            Self::UnknownDirective => {
                "is an unknown directive, which may not hold for forms of the entry"
            }
            Self::UnknownParameter => "is a parameter of unknown size",
            Self::ParameterLimit => {
                "has no room for another parameter within the limit of this PTX version and target"
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, subject, function, at } = self;
        write!(f, "{at}, in {function}: {subject} {}", reason.text())
    }
}
