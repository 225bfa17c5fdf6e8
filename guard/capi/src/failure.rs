//! The status of a call, and why it failed.

#[cfg(feature = "cuda")]
use gridguard::cuda::{CudaErrorKind, LaunchErrorKind};
use gridguard::{Error, Violation};

/// The result of a call.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gg_status {
    /// It succeeded.
    GG_OK = 0,
    /// The launch breaks rules: see `gg_error_violation`.
    GG_REJECTED = 1,
    /// An argument is NULL, not UTF-8, malformed or out of range.
    GG_INVALID_ARGUMENT = 2,
    /// A handle is NULL, freed, of another type, or not a handle.
    GG_INVALID_HANDLE = 3,
    /// This version of the library does not know the `struct_size`.
    GG_INVALID_STRUCT = 4,
    /// There is no such GPU, device, violation or explanation.
    GG_NOT_FOUND = 5,
    /// The driver cannot be used, or a call to it failed: see `gg_error_driver_code`.
    GG_DRIVER = 6,
    /// The kernel's parameters do not fit the kernel or the batch.
    GG_PARAMETERS = 7,
    /// The library reached one of its own limits, or has a defect.
    GG_INTERNAL = 8,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Failure {
    pub(crate) status: gg_status,
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("{0}")]
    Text(String),
    #[error(transparent)]
    Library(Box<Error>),
}

impl<E: Into<Error>> From<E> for Failure {
    #[cold]
    #[inline(never)]
    fn from(error: E) -> Self {
        let error = error.into();
        Self { status: status_of(&error), reason: Reason::Library(Box::new(error)) }
    }
}

impl Failure {
    #[cold]
    #[inline(never)]
    pub(crate) fn new(status: gg_status, text: impl Into<String>) -> Self {
        Self { status, reason: Reason::Text(text.into()) }
    }

    #[cold]
    pub(crate) fn null(what: &str) -> Self {
        Self::new(gg_status::GG_INVALID_ARGUMENT, format!("{what} is NULL"))
    }

    #[cold]
    pub(crate) fn range(what: &str, given: impl Into<u64>, expected: &str) -> Self {
        let text = format!("{what} is {}, expected {expected}", given.into());
        Self::new(gg_status::GG_INVALID_ARGUMENT, text)
    }

    /// The failure for a panic with this payload.
    #[cold]
    pub(crate) fn panicked(payload: &(dyn core::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let text = format!("gridguard failed: {}", text.unwrap_or("it panicked"));
        Self::new(gg_status::GG_INTERNAL, text)
    }

    /// The library's error, if it is one.
    pub(crate) fn library(&self) -> Option<&Error> {
        match &self.reason {
            Reason::Library(error) => Some(error),
            Reason::Text(_) => None,
        }
    }

    /// The `CUresult` that the driver returned, or would return for a rejected launch; 0 if there is
    /// none.
    pub(crate) fn driver_code(&self) -> i32 {
        let code = match self.library() {
            Some(Error::Violations(violations)) => violations.driver_code(),
            #[cfg(feature = "cuda")]
            Some(Error::Cuda(error)) => error.driver_code(),
            #[cfg(feature = "cuda")]
            Some(Error::Launch(error)) => error.driver_code(),
            _ => None,
        };
        code.unwrap_or(0)
    }

    /// The rules that the launch breaks, if it was rejected for them.
    pub(crate) fn violations(&self) -> impl Iterator<Item = &Violation> {
        let violations = match self.library() {
            Some(Error::Violations(violations)) => Some(violations),
            #[cfg(feature = "cuda")]
            Some(Error::Launch(error)) => error.violations(),
            _ => None,
        };
        violations.into_iter().flatten()
    }
}

fn status_of(error: &Error) -> gg_status {
    match error {
        Error::Violations(_) => gg_status::GG_REJECTED,
        Error::Args(_) => gg_status::GG_PARAMETERS,
        Error::Catalog(error) if error.unknown_gpu().is_some() => gg_status::GG_NOT_FOUND,
        #[cfg(feature = "cuda")]
        Error::Cuda(error) if matches!(error.kind(), CudaErrorKind::NoSuchDevice { .. }) => {
            gg_status::GG_NOT_FOUND
        }
        #[cfg(feature = "cuda")]
        Error::Launch(error) => match error.kind() {
            LaunchErrorKind::Invalid(_) => gg_status::GG_REJECTED,
            LaunchErrorKind::Args(_) => gg_status::GG_PARAMETERS,
            _ => gg_status::GG_DRIVER,
        },
        #[cfg(feature = "cuda")]
        Error::Cuda(_) => gg_status::GG_DRIVER,
        _ => gg_status::GG_INTERNAL,
    }
}
