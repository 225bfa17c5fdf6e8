//! The error of this crate.

use core::error::Error as StdError;
use core::fmt;
use std::sync::Arc;

use gridguard::profile::{ProfileError, ProfileErrorKind};

use crate::failure::MeasureFailure;

/// Why something cannot be tuned, measured, resumed or stored.
///
/// The message says what to change. The [kind](Self::kind) tells apart what a program may handle.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Sizes, values, a command, an objective or a name cannot be tuned.
    Input,
    /// No configuration of the launch is legal.
    NoCandidate,
    /// The default does not run, so there is nothing to compare with.
    Default(MeasureFailure),
    /// Measuring has ended. No candidate is the cause.
    Ended(MeasureFailure),
    /// A constraint or the description of a launch failed, or there is no clock.
    Setup(MeasureFailure),
    /// The measuring process does not start, or the default crashes one process after another.
    Process,
    /// The measuring process cannot open the problem, or crashes on it.
    Open(MeasureFailure),
    /// The connection between the tuner and this measuring process failed, or a request is malformed.
    Connection,
    /// A journal cannot be used. The file is unchanged.
    Journal,
    /// Another search has the journal.
    Busy,
    /// The entry cannot be written to a profile.
    Profile,
    /// There is nothing to draw, or the drawing library failed.
    Plot,
}

impl Error {
    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// No configuration of the launch is legal.
    #[must_use]
    pub fn no_candidate() -> Self {
        Self::new(ErrorKind::NoCandidate, "no configuration of the launch is legal")
    }

    /// The default failed.
    #[must_use]
    pub fn of_default(failure: MeasureFailure) -> Self {
        let message = format!("the default failed: {failure}");
        Self::new(ErrorKind::Default(failure.clone()), message).caused_by(failure)
    }

    /// Measuring has ended.
    #[must_use]
    pub fn ended(failure: MeasureFailure) -> Self {
        let message = failure.to_string();
        Self::new(ErrorKind::Ended(failure), message)
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Input, message)
    }

    pub(crate) fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(source)), ..self }
    }

    /// Puts the cause behind "`what`: ".
    pub(crate) fn with<E: StdError + Send + Sync + 'static>(
        kind: ErrorKind,
        what: &str,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::new(kind, format!("{what}: {source}")).caused_by(source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| -> &(dyn StdError + 'static) { source })
    }
}

/// Equal in kind and message.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        (&self.kind, &self.message) == (&other.kind, &other.message)
    }
}

impl Eq for Error {}

impl From<MeasureFailure> for Error {
    fn from(failure: MeasureFailure) -> Self {
        let message = failure.to_string();
        Self::new(ErrorKind::Setup(failure), message)
    }
}

impl From<ProfileError> for Error {
    fn from(error: ProfileError) -> Self {
        let kind = match error.kind() {
            ProfileErrorKind::Entry => ErrorKind::Input,
            _ => ErrorKind::Profile,
        };
        Self::new(kind, error.to_string())
    }
}
