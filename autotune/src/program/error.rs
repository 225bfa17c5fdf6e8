//! Why an external program cannot be tuned.

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
    /// There are no sizes, or the first size, the number of items, is 0.
    #[error("there are no items: the first size counts them and must be at least 1")]
    NoItems,
    /// A name cannot be a placeholder, or is `chunk`.
    #[error("{name:?} cannot be a name: use letters, digits and _, and not \"chunk\"")]
    Name {
        /// The name.
        name: String,
    },
    /// Two sizes or parameters have the same name.
    #[error("{name} is given twice: remove one")]
    NamedTwice {
        /// The name.
        name: String,
    },
    /// A parameter has no values or a repeated value, or a chunk has no items.
    #[error("the values of {name} are not at least one, each once, and chunks of at least 1 item")]
    Values {
        /// The parameter, or `chunk`.
        name: String,
    },
    /// The command does not use a parameter or chunk.
    #[error("{name} is given, but the command has no {{{name}}}")]
    Unused {
        /// The parameter, or `chunk`.
        name: String,
    },
    /// Every run would be the same.
    #[error("nothing varies: write {{chunk}} or a parameter such as {{block}} into the command")]
    NothingVaries,
    /// There are too many candidates.
    #[error("there are more than {MAX_CANDIDATES} candidates: give fewer values")]
    TooMany,
}

/// Each candidate takes at least one process, so a larger search would not end.
pub(super) const MAX_CANDIDATES: usize = 4096;
