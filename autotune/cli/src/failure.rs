//! Answers and failures as exit codes.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gridguard::catalog::CatalogError;
use gridguard::check::DescriptionError;
use gridguard::cuda::CudaError;
use gridguard::profile::{InsertError, MergeError, Mismatch, ProfileError, StoreError};
use gridguard_autotune::{EvaluateError, PlotError, RemoteError, ServeError, TuneError};
use gridguard_kernels::KernelError;
use gridguard_kernels::exercise::{ExerciseError, ProblemError};

/// What the command was asked for is so, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    /// It could not be found out.
    Unknown,
    /// Some of the input was malformed; the rest was answered.
    Malformed,
    /// Somebody asked for the end before all was answered.
    Interrupted,
}

/// The exit code of a program that was interrupted, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

impl From<Answer> for ExitCode {
    fn from(answer: Answer) -> Self {
        Self::from(match answer {
            Answer::Yes => 0,
            Answer::No => 1,
            Answer::Malformed => 2,
            Answer::Unknown => 3,
            Answer::Interrupted => INTERRUPTED,
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
    #[error("{0}: name a GPU of the catalogue with --gpu, or the host with --device host")]
    NoDevice(CudaError),
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("the answer could not be written as {format}: {error}")]
    Format { format: &'static str, error: String },
    #[error(transparent)]
    Problem(#[from] ProblemError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Exercise(#[from] ExerciseError),
    #[error("{}{error}", place_of(path, error))]
    Profile { path: PathBuf, error: ProfileError },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the choice could not be kept: {0}")]
    Insert(#[from] InsertError),
    #[error("{path}: {error}", path = path.display())]
    Merge { path: PathBuf, error: MergeError },
    #[error("{path}: {mismatch}", path = path.display())]
    OtherDevice { path: PathBuf, mismatch: Mismatch },
    #[error(
        "the merge would lose {entries} of the entries of {path}: name it among the files to keep \
         them, or --force to lose them",
        path = path.display()
    )]
    WouldLose { path: PathBuf, entries: usize },
    #[error("the choice does not hold any more: {message}")]
    Unkept { message: String },
    #[error(
        "{path} has no entry to measure: tune first, or see what was passed over",
        path = path.display()
    )]
    NothingToVerify { path: PathBuf },
    #[error("{path}: there is no such file", path = path.display())]
    Missing { path: PathBuf },
    #[error(
        "the devices are of several models and {path} is one file: name a folder, such as {path}/",
        path = path.display()
    )]
    OneFile { path: PathBuf },
    #[error("there is no folder for profiles of one's own: name a file with --profile")]
    NoProfileFolder,
    #[error("{0}")]
    Usage(String),
    #[error("there is nothing to measure on")]
    NoTarget,
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    #[error(transparent)]
    Tune(#[from] TuneError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Measuring(#[from] gridguard_autotune::MeasureFailure),
    #[error("the picture could not be drawn: {0}")]
    Plot(#[from] PlotError),
    #[error("signals could not be handled: {0}")]
    Signals(#[from] ctrlc::Error),
    #[error("threads could not be started: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

/// Where a profile is, for errors that do not name the place themselves.
fn place_of(path: &Path, error: &ProfileError) -> String {
    match error {
        ProfileError::NotAFile { .. } | ProfileError::Read { .. } => String::new(),
        _ => format!("{}: ", path.display()),
    }
}

impl Failure {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }

    /// Takes what became of an output. Whoever closed it has read enough: the answer is what it is.
    pub(crate) fn written(result: io::Result<()>, what: &str) -> Result<(), Self> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(Self::io(what)),
        }
    }

    pub(crate) fn profile(path: &Path) -> impl FnOnce(ProfileError) -> Self {
        let path = path.to_owned();
        move |error| Self::Profile { path, error }
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
            Self::Description(_)
            | Self::Catalog(CatalogError::UnknownGpu { .. })
            | Self::Problem(_)
            | Self::Kernel(KernelError::Dimension { .. } | KernelError::TooLarge { .. })
            | Self::Merge { .. }
            | Self::OtherDevice { .. }
            | Self::WouldLose { .. }
            | Self::Missing { .. }
            | Self::OneFile { .. }
            | Self::NoProfileFolder
            | Self::Usage(_) => 2,
            // A file that cannot be read need not be malformed.
            Self::Profile { error: ProfileError::Read { .. }, .. } => 3,
            Self::Profile { .. } => 2,
            _ => 3,
        })
    }
}
