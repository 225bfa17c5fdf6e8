//! Reasons why an entry cannot be rewritten.

use core::fmt;

use crate::error::Position;

/// Why an entry has no forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// The name of the instruction, register, function or parameter that the reason is about.
    pub subject: String,
    /// The function that contains it: the entry, or a function that the entry calls.
    pub function: String,
    /// Its position.
    pub at: Position,
}

/// Declares the reasons from rows of `Variant = id, text`. The text follows the subject.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $text:literal;)*) => {
        /// A reason why an entry cannot be split without knowledge of its source.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            const fn row(self) -> (&'static str, &'static str) {
                match self { $(Self::$variant => ($id, $text),)* }
            }
        }
    };
}

reasons! {
    /// It synchronizes its grid, which must then be one cooperative launch.
    GridSynchronization = "grid-synchronization", "is for grid synchronization, which needs one cooperative launch";
    /// It numbers the thread block clusters of a launch, or cancels one. Other uses of clusters are no reason.
    Cluster = "cluster", "is about the clusters of one launch, and each chunk is a launch of its own";
    /// It launches kernels, or uses another function of the device runtime.
    DeviceLaunch = "device-launch", "is a function of the device runtime, which launches kernels";
    /// It reads the identity of its grid, which differs in each chunk.
    GridId = "grid-id", "identifies the grid, and each chunk is a grid of its own";
    /// It calls a function by address, and which functions may be called is not stated.
    IndirectCall = "indirect-call", "is called by address, and the possible functions are not stated";
    /// It calls a function by address, and one of the possible functions reads the grid.
    IndirectCallReadsGrid = "indirect-call-reads-grid", "is called by address and reads a block index or the grid size";
    /// It calls a function that is not in this text.
    ExternalFunction = "external-function", "is not defined in this text and may read a block index";
    /// It reads a block index or grid size in fewer than 32 bits, which a larger grid would exceed.
    NarrowRead = "narrow-read", "is read in fewer than 32 bits, which a larger grid would exceed";
    /// It reads a block index or grid size in an instruction that is not supported.
    UnknownRead = "unknown-read", "is read by an instruction that is not supported";
    /// It calls in a form that is not known.
    UnknownCall = "unknown-call", "is called in an unknown form";
    /// It declares the name of a special register.
    HiddenRegister = "hidden-register", "is declared here, but is the name of a special register";
    /// It declares a global variable in its body, which its forms would not share.
    OwnVariable = "own-variable", "is a variable that the forms of the entry would not share with it";
    /// It uses a variable of a kind that a module beside the loaded one cannot share with it.
    UnsharedVariable = "unshared-variable", "is a variable of a kind that a copy of the kernel cannot share";
    /// It uses a variable that the loaded module does not have with this size.
    MissingVariable = "missing-variable",
        "is a variable that the loaded module does not have, or has with another size";
    /// It has a directive that is not known to hold for its forms.
    UnknownDirective = "unknown-directive",
        "is an unknown directive, which may not be valid for forms of the entry";
    /// A parameter is of a type whose size is not known.
    UnknownParameter = "unknown-parameter", "is a parameter of unknown size";
    /// The added parameter would exceed the parameter limit of the PTX version and target.
    ParameterLimit = "parameter-limit",
        "would exceed the parameter limit of this PTX version and target with another parameter";
}

impl Reason {
    /// A short stable name for programs.
    pub const fn id(self) -> &'static str {
        self.row().0
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, subject, function, at } = self;
        write!(f, "{at}, in {function}: {subject} {}", reason.row().1)
    }
}
