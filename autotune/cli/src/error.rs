//! Exit codes, and the errors that prevent a result.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use gridguard::catalog::CatalogError;
use gridguard::check::Legality;
use gridguard::cuda::CudaError;
use gridguard::profile::{ProfileError, ProfileErrorKind};
use gridguard_autotune::ErrorKind;
use gridguard_files::{LockError, PublishError};
#[cfg(feature = "fleet")]
use gridguard_fleet::FleetError;
use gridguard_kernels::KernelError;
use gridguard_problems::ErrorKind as ProblemKind;

use crate::words::{gpu_words, nearest};

/// What the exit code tells the caller. The greatest of several results decides.
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
#[derive(Debug)]
pub(crate) enum CommandError {
    /// The command line or an input file is invalid: exit code 2.
    Invalid(String),
    /// The result could not be determined: exit code 3.
    Failed(String),
    /// Another process does the same search.
    JournalHeld(LockError),
    /// The reader of standard output has closed the pipe, which is not a failure.
    ClosedPipe,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(message) | Self::Failed(message) => f.write_str(message),
            Self::JournalHeld(held) => write!(f, "its journal is {held}"),
            Self::ClosedPipe => f.write_str("the output is a closed pipe"),
        }
    }
}

impl<E: Error + 'static> From<E> for CommandError {
    fn from(error: E) -> Self {
        let any: &dyn Any = &error;
        if let Some(name) = any.downcast_ref().and_then(CatalogError::unknown_gpu) {
            return Self::unknown_gpu(name);
        }
        let is_invalid = matches!(
            any.downcast_ref().map(gridguard_problems::Error::kind),
            Some(ProblemKind::UnknownKernel | ProblemKind::NotAProblem)
        ) || matches!(
            any.downcast_ref(),
            Some(KernelError::Dimension { .. } | KernelError::TooLarge { .. })
        );
        #[cfg(feature = "fleet")]
        let is_invalid = is_invalid
            || matches!(
                any.downcast_ref(),
                Some(
                    FleetError::Address { .. }
                        | FleetError::Key { .. }
                        | FleetError::Profile { .. }
                )
            );
        if is_invalid {
            return Self::Invalid(error.to_string());
        }
        let what = match () {
            () if any.is::<CudaError>() => {
                return Self::Failed(format!(
                    "cannot query the device: {error}: run gridguard doctor"
                ));
            }
            () if any.downcast_ref().map(ProfileError::kind) == Some(&ProfileErrorKind::Entry) => {
                "cannot store the tuned choice: "
            }
            () if any.downcast_ref().map(gridguard_autotune::Error::kind)
                == Some(&ErrorKind::Plot) =>
            {
                "cannot draw the plot: "
            }
            () if any.is::<ctrlc::Error>() => "cannot handle signals: ",
            () => "",
        };
        Self::Failed(format!("{what}{error}"))
    }
}

impl CommandError {
    /// The error about a GPU that is not in the catalogue, with the nearest one.
    fn unknown_gpu(name: &str) -> Self {
        let words = gpu_words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let nearest = nearest(name, &words);
        let question = nearest.map_or_else(String::new, |one| format!("; did you mean {one}?"));
        Self::Invalid(format!(
            "no GPU {name:?} in the catalogue{question}\n  it has {}\n  `gridguard limits` lists their names",
            words.join(", ")
        ))
    }

    /// An error about one file.
    pub(crate) fn invalid_file(path: &Path, error: impl fmt::Display) -> Self {
        Self::Invalid(format!("{}: {error}", path.display()))
    }

    pub(crate) fn missing_file(path: &Path) -> Self {
        Self::invalid_file(path, "no such file")
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Failed(format!("{what}: {error}")),
        }
    }

    pub(crate) fn publish(path: &Path) -> impl FnOnce(PublishError) -> Self {
        let io = Self::io(path.display().to_string());
        move |error| io(error.into())
    }

    pub(crate) fn profile(path: &Path) -> impl FnOnce(ProfileError) -> Self {
        move |error| match error.kind() {
            // A file that cannot be read may still be valid. The error names it.
            ProfileErrorKind::Read(_) => Self::Failed(error.to_string()),
            ProfileErrorKind::NotAFile => Self::Invalid(error.to_string()),
            _ => Self::invalid_file(path, error),
        }
    }

    /// The error of a failed write, except to a closed pipe.
    pub(crate) fn check_write(result: io::Result<()>, what: &str) -> Result<(), Self> {
        match result.map_err(Self::io(what)) {
            Err(Self::ClosedPipe) => Ok(()),
            other => other,
        }
    }

    pub(crate) const fn exit(&self) -> Exit {
        match self {
            Self::Invalid(_) => Exit::InvalidInput,
            Self::Failed(_) | Self::JournalHeld(_) => Exit::Unknown,
            Self::ClosedPipe => Exit::Yes,
        }
    }
}
