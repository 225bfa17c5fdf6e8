//! The error of the package.

use crate::memory::Bytes;

/// Why a report cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ReportError(#[from] Reason);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Reason {
    #[error("more than {}, the most that a report has", Bytes(*.0))]
    TooLarge(u64),
    #[error("a report of format {format}; this command reads {known}")]
    Newer { format: u32, known: u32 },
    #[error("no report: {0}")]
    Invalid(#[from] serde_json::Error),
}
