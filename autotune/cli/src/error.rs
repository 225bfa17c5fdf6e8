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

/// Why there is no result: a message, and the exit code.
#[derive(Debug)]
pub(crate) struct CommandError {
    message: String,
    /// `Yes` if the reader of standard output has closed the pipe, which is not a failure. `No` if another process does
    /// the same search.
    pub(crate) exit: Exit,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: Error + 'static> From<E> for CommandError {
    fn from(error: E) -> Self {
        let any: &dyn Any = &error;
        if any.downcast_ref().and_then(CatalogError::unknown_gpu).is_some() {
            return Self::invalid(format_args!("{error}\n  `gridguard limits` lists the names"));
        }
        if is_invalid(any) {
            return Self::invalid(error);
        }
        let entry = any.downcast_ref().map(ProfileError::kind);
        let tuning = any.downcast_ref().map(gridguard_autotune::Error::kind);
        Self::failed(match () {
            () if any.is::<CudaError>() => {
                format!("cannot query the device: {error}: run gridguard doctor")
            }
            () if entry == Some(&ProfileErrorKind::Entry) => {
                format!("cannot store the tuned choice: {error}")
            }
            () if tuning == Some(&ErrorKind::Plot) => format!("cannot draw the plot: {error}"),
            () => error.to_string(),
        })
    }
}

/// Whether an error of a library means that the command line is invalid.
fn is_invalid(error: &dyn Any) -> bool {
    #[cfg(feature = "fleet")]
    if let Some(error) = error.downcast_ref::<FleetError>() {
        use FleetError::{Address, Key, Profile};
        return matches!(error, Address { .. } | Key { .. } | Profile { .. });
    }
    let problem = error.downcast_ref().map(gridguard_problems::Error::kind);
    matches!(problem, Some(ProblemKind::UnknownKernel | ProblemKind::NotAProblem))
        || matches!(
            error.downcast_ref(),
            Some(KernelError::Dimension { .. } | KernelError::TooLarge { .. })
        )
}

impl CommandError {
    /// The command line or an input file is invalid: exit code 2.
    pub(crate) fn invalid(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), exit: Exit::InvalidInput }
    }

    /// The result could not be determined: exit code 3.
    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), exit: Exit::Unknown }
    }

    /// Another process has the journal of the search.
    pub(crate) fn held(held: &LockError) -> Self {
        Self { message: format!("its journal is {held}"), exit: Exit::No }
    }

    /// An error about one file.
    pub(crate) fn invalid_file(path: &Path, error: impl fmt::Display) -> Self {
        Self::invalid(format_args!("{}: {error}", path.display()))
    }

    /// Makes any error one about a file.
    pub(crate) fn in_file<E: fmt::Display>(path: &Path) -> impl Fn(E) -> Self {
        move |error| Self::invalid_file(path, error)
    }

    pub(crate) fn missing_file(path: &Path) -> Self {
        Self::invalid_file(path, "no such file")
    }

    pub(crate) fn io(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |error| {
            let is_closed = error.kind() == io::ErrorKind::BrokenPipe;
            let exit = if is_closed { Exit::Yes } else { Exit::Unknown };
            Self { message: format!("{what}: {error}"), exit }
        }
    }

    pub(crate) fn publish(path: &Path) -> impl FnOnce(PublishError) -> Self {
        move |error| Self::io(path.display())(error.into())
    }

    pub(crate) fn profile(path: &Path) -> impl FnOnce(ProfileError) -> Self {
        move |error| match error.kind() {
            // A file that cannot be read may still be valid. The error names it.
            ProfileErrorKind::Read(_) => Self::failed(error),
            ProfileErrorKind::NotAFile => Self::invalid(error),
            _ => Self::invalid_file(path, error),
        }
    }

    /// The error of a failed write, except to a closed pipe.
    pub(crate) fn check_write(result: io::Result<()>, what: &str) -> Result<(), Self> {
        result.map_err(Self::io(what)).or_else(|error| match error.exit {
            Exit::Yes => Ok(()),
            _ => Err(error),
        })
    }
}
