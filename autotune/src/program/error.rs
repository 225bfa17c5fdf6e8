//! Why an external program cannot be tuned.

use crate::ranges::RangeError;

/// Why a program cannot be tuned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The command has no words.
    #[error("the command is empty: give a program and its arguments")]
    NoCommand,
    /// A quote is not closed, or nothing follows a backslash.
    #[error("the command ends within a quotation or after a backslash: {command}")]
    Quotation {
        /// The command.
        command: String,
    },
    /// A brace is neither doubled nor around a name.
    #[error(
        "{word:?} has a brace outside a placeholder such as {{block}}: write {{{{ or }}}} for a brace"
    )]
    Brace {
        /// The word of the command.
        word: String,
    },
    /// A placeholder of the command has no value.
    #[error(
        "the command has the placeholder {{{name}}} but no value for it: give it as a size or \
         parameter, or write {{{{ for a brace"
    )]
    NoValue {
        /// The placeholder.
        name: String,
    },
    /// The ranges have no candidates.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The command does not use a parameter or chunk.
    #[error("{name} is given, but the command has no {{{name}}}")]
    Unused {
        /// The parameter, or `chunk`.
        name: String,
    },
    /// Every run would be the same.
    #[error("nothing varies: write {{chunk}} or a parameter such as {{block}} into the command")]
    NothingVaries,
}
