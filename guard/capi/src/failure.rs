//! Why a call failed, and the status that the caller gets for it.

#[cfg(feature = "cuda")]
use gridguard::cuda::{CudaErrorKind, LaunchError};
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
pub(crate) enum Failure {
    #[error("{0} is NULL")]
    Null(&'static str),
    #[error("{what} is NULL")]
    NullHandle { what: &'static str },
    #[error("{what} is not the handle of a live {name}")]
    Handle { what: &'static str, name: &'static str },
    #[error("more than 16777216 objects at the same time: free some with gg_free")]
    TooManyObjects,
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    #[error("{what} is {given}, expected {expected}")]
    Range { what: &'static str, given: u64, expected: &'static str },
    #[error(
        "{what}.struct_size is {given}, this library takes {}: set it to sizeof, and compile with the \
         header of this library or of an older one",
        sizes(*oldest, *newest)
    )]
    Struct { what: &'static str, given: usize, oldest: usize, newest: usize },
    #[error("the request is malformed: {0}")]
    Json(serde_json::Error),
    #[error("{0}")]
    NotFound(String),
    #[error(transparent)]
    Library(Box<Error>),
    #[cfg(feature = "cuda")]
    #[error("kernel {kernel} has parameters of {known:?} bytes, but {declared:?} are declared")]
    Parameters { kernel: String, known: Vec<usize>, declared: Vec<usize> },
    #[cfg(feature = "cuda")]
    #[error("the driver does not know the parameters of kernel {kernel}: pass their sizes")]
    UnknownParameters { kernel: String },
    #[error("gridguard failed: {0}")]
    Panicked(String),
}

impl<E: Into<Error>> From<E> for Failure {
    #[cold]
    #[inline(never)]
    fn from(error: E) -> Self {
        Self::Library(Box::new(error.into()))
    }
}

impl Failure {
    #[cold]
    #[inline(never)]
    pub(crate) const fn of_handle(handle: usize, what: &'static str, name: &'static str) -> Self {
        match handle {
            0 => Self::NullHandle { what },
            _ => Self::Handle { what, name },
        }
    }

    /// The failure for a structure that states the size `given`; `None` for NULL.
    #[cold]
    #[inline(never)]
    pub(crate) fn of_structure(
        what: &'static str,
        given: Option<usize>,
        oldest: usize,
        newest: usize,
    ) -> Self {
        given.map_or(Self::Null(what), |given| Self::Struct { what, given, oldest, newest })
    }

    /// The failure for a panic with this payload.
    #[cold]
    pub(crate) fn panicked(payload: &(dyn core::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Self::Panicked(text.unwrap_or("it panicked").to_owned())
    }

    pub(crate) fn status(&self) -> gg_status {
        match self {
            Self::Null(_) | Self::NotUtf8(_) | Self::Range { .. } | Self::Json(_) => {
                gg_status::GG_INVALID_ARGUMENT
            }
            Self::NullHandle { .. } | Self::Handle { .. } => gg_status::GG_INVALID_HANDLE,
            Self::Struct { .. } => gg_status::GG_INVALID_STRUCT,
            Self::NotFound(_) => gg_status::GG_NOT_FOUND,
            Self::TooManyObjects | Self::Panicked(_) => gg_status::GG_INTERNAL,
            #[cfg(feature = "cuda")]
            Self::Parameters { .. } | Self::UnknownParameters { .. } => gg_status::GG_PARAMETERS,
            Self::Library(error) => status_of(error),
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

    /// The library's error, if it is one.
    pub(crate) fn library(&self) -> Option<&Error> {
        match self {
            Self::Library(error) => Some(error),
            _ => None,
        }
    }
}

/// The sizes that a structure may state.
fn sizes(oldest: usize, newest: usize) -> String {
    if oldest == newest { newest.to_string() } else { format!("{oldest} to {newest}") }
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
        Error::Launch(LaunchError::Invalid(_)) => gg_status::GG_REJECTED,
        #[cfg(feature = "cuda")]
        Error::Launch(LaunchError::Args(_)) => gg_status::GG_PARAMETERS,
        #[cfg(feature = "cuda")]
        Error::Cuda(_) | Error::Launch(_) => gg_status::GG_DRIVER,
        _ => gg_status::GG_INTERNAL,
    }
}
