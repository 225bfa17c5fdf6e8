//! Errors of reading PTX.

use core::fmt;

/// A place in the text, counted from 1; columns in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The byte of the line.
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Why a text cannot be read as PTX. It is then not rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PtxError {
    /// The text does not begin with `.version` and `.target`.
    NotPtx,
    /// The version is unknown, and may have other ways to read a block index.
    UnknownVersion {
        /// The version, such as `10.0`.
        version: String,
    },
    /// A byte that is invalid outside of comments and strings, or a zero byte anywhere.
    UnexpectedByte {
        /// The byte.
        byte: u8,
        /// Where it is.
        at: Position,
    },
    /// An unterminated comment, string, body or statement.
    Unterminated {
        /// The unterminated part.
        what: &'static str,
        /// Where it begins.
        at: Position,
    },
    /// An unexpected token.
    UnexpectedToken {
        /// The token, or its first bytes.
        found: String,
        /// The expected token.
        expected: &'static str,
        /// Where it is.
        at: Position,
    },
    /// A function or entry that is defined twice.
    DefinedTwice {
        /// Its name.
        name: String,
        /// The second definition.
        at: Position,
    },
    /// A statement with more tokens than any compiler writes.
    StatementTooLong {
        /// The most tokens that a statement may have.
        limit: usize,
        /// Where it begins.
        at: Position,
    },
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPtx => {
                f.write_str("not PTX: the text does not begin with .version and .target")
            }
            Self::UnknownVersion { version } => write!(
                f,
                "PTX version {version} is unknown: versions up to {NEWEST_MAJOR}.x can be rewritten"
            ),
            Self::UnexpectedByte { byte, at } => {
                write!(f, "{at}: unexpected byte {byte:#04x}")
            }
            Self::Unterminated { what, at } => write!(f, "{at}: {what} does not end"),
            Self::UnexpectedToken { found, expected, at } => {
                write!(f, "{at}: expected {expected}, found `{found}`")
            }
            Self::DefinedTwice { name, at } => write!(f, "{at}: {name} is defined twice"),
            Self::StatementTooLong { limit, at } => {
                write!(f, "{at}: a statement of more than {limit} tokens")
            }
        }
    }
}

impl core::error::Error for PtxError {}

/// The newest major version whose special registers and instructions are known.
pub(crate) const NEWEST_MAJOR: u32 = 9;
