//! Answers and failures as exit codes.

use std::io;
use std::process::ExitCode;

use gridguard::catalog::CatalogError;
use gridguard::check::DescriptionError;
use gridguard::cuda::CudaError;

/// What the command was asked for is so, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    /// Some of the input was malformed; the rest was answered.
    Malformed,
}

impl From<Answer> for ExitCode {
    fn from(answer: Answer) -> Self {
        Self::from(match answer {
            Answer::Yes => 0,
            Answer::No => 1,
            Answer::Malformed => 2,
        })
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Description(#[from] DescriptionError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error("the device could not be asked: {0}")]
    Device(#[from] CudaError),
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("the answer could not be written as {format}: {error}")]
    Format { format: &'static str, error: String },
}

impl Failure {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }

    /// Says why on stderr and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if let Self::Io { error, .. } = self
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            // Whoever reads has read enough.
            return ExitCode::SUCCESS;
        }
        eprintln!("error: {self}");
        ExitCode::from(match self {
            Self::Description(_) | Self::Catalog(CatalogError::UnknownGpu { .. }) => 2,
            Self::Catalog(_) | Self::Device(_) | Self::Io { .. } | Self::Format { .. } => 3,
        })
    }
}
