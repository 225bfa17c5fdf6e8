//! Exit codes, and the errors that prevent a result.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gridguard::catalog::CatalogError;
use gridguard::check::Legality;
use gridguard::cuda::CudaError;
use gridguard::files::{LockError, PublishError};
use gridguard::profile::{EntryError, ProfileError};
use gridguard_autotune::{PlotError, RemoteError, ServeError, TuneError};
use gridguard_kernels::KernelError;
use gridguard_kernels::bench::ProblemError;

/// What the exit code tells the caller. Of several results, the greatest decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    Yes,
    No,
    /// Some of the input is invalid; the rest was processed.
    InvalidInput,
    /// The result could not be determined.
    Unknown,
    /// A signal ended the command early.
    Interrupted,
}

/// The exit code after a signal, as shells define it for Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Yes => 0,
            Exit::No => 1,
            Exit::InvalidInput => 2,
            Exit::Unknown => 3,
            Exit::Interrupted => INTERRUPTED,
        })
    }
}

impl From<Legality> for Exit {
    fn from(legality: Legality) -> Self {
        match legality {
            Legality::Legal | Legality::Chunked => Exit::Yes,
            _ => Exit::No,
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The command line or an input file is invalid: exit code 2.
    #[error("{0}")]
    Invalid(String),
    /// The command line is valid, but the result could not be determined: exit code 3.
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error("cannot query the device: {0}")]
    Device(#[from] CudaError),
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    #[error(transparent)]
    Problem(#[from] ProblemError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error("{}{error}", file_prefix(path, error))]
    Profile { path: PathBuf, error: ProfileError },
    #[error(transparent)]
    Store(#[from] ProfileError),
    #[error("cannot store the tuned choice: {0}")]
    Insert(#[from] EntryError),
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// Another process does the same search.
    #[error("its journal is {0}")]
    JournalHeld(LockError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Measure(#[from] gridguard_autotune::MeasureFailure),
    #[error("cannot draw the plot: {0}")]
    Plot(#[from] PlotError),
    #[error("cannot handle signals: {0}")]
    Signals(#[from] ctrlc::Error),
}

impl CommandError {
    /// An error for one file; `error` says what is wrong with it.
    pub(crate) fn invalid_file(path: &Path, error: impl std::fmt::Display) -> Self {
        Self::Invalid(format!("{}: {error}", path.display()))
    }

    pub(crate) fn missing_file(path: &Path) -> Self {
        Self::invalid_file(path, "no such file")
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }

    pub(crate) fn publish(path: &Path) -> impl FnOnce(PublishError) -> Self {
        let io = Self::io(path.display().to_string());
        move |error| io(error.into())
    }

    pub(crate) fn profile(path: &Path) -> impl FnOnce(ProfileError) -> Self {
        let path = path.to_owned();
        move |error| Self::Profile { path, error }
    }

    /// The error of a failed write. A reader that closed the pipe has read enough, which is none.
    pub(crate) fn check_write(result: io::Result<()>, what: &str) -> Result<(), Self> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(Self::io(what)),
        }
    }

    /// Whether the reader of standard output has closed the pipe, which is not a failure.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::BrokenPipe)
    }

    pub(crate) const fn exit(&self) -> Exit {
        match self {
            Self::Invalid(_)
            | Self::Catalog(CatalogError::UnknownGpu { .. })
            | Self::Problem(_)
            | Self::Kernel(KernelError::Dimension { .. } | KernelError::TooLarge { .. }) => {
                Exit::InvalidInput
            }
            // A file that cannot be read may still be valid.
            Self::Profile { error: ProfileError::Read { .. }, .. } => Exit::Unknown,
            Self::Profile { .. } => Exit::InvalidInput,
            _ => Exit::Unknown,
        }
    }
}

/// The file of a profile's error, for the errors that do not name it themselves.
fn file_prefix(path: &Path, error: &ProfileError) -> String {
    match error {
        ProfileError::NotAFile { .. } | ProfileError::Read { .. } => String::new(),
        _ => format!("{}: ", path.display()),
    }
}
