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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum PtxError {
    /// The text does not begin with `.version` and `.target`.
    #[error("not PTX: the text does not begin with .version and .target")]
    NotPtx,
    /// The version is unknown, and may have other ways to read a block index.
    #[error("PTX version {version} is unknown: versions up to {NEWEST_MAJOR}.x can be rewritten")]
    UnknownVersion { version: String },
    /// A byte that is invalid outside comments and strings, or a zero byte anywhere.
    #[error("{at}: unexpected byte {byte:#04x}")]
    UnexpectedByte { byte: u8, at: Position },
    /// An unterminated comment, string, body or statement, and where it begins.
    #[error("{at}: {what} does not end")]
    Unterminated { what: &'static str, at: Position },
    /// An unexpected token, or its first bytes.
    #[error("{at}: expected {expected}, found `{found}`")]
    UnexpectedToken { found: String, expected: &'static str, at: Position },
    /// A function or entry that is defined twice, and the place of the second definition.
    #[error("{at}: {name} is defined twice")]
    DefinedTwice { name: String, at: Position },
    /// A statement with more tokens than any compiler writes, and where it begins.
    #[error("{at}: a statement of more than {limit} tokens")]
    StatementTooLong { limit: usize, at: Position },
}

/// The newest major version whose special registers and instructions are known.
pub(crate) const NEWEST_MAJOR: u32 = 9;
