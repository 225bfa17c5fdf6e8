//! Why text is not a problem, or a problem was not run.

use core::fmt;

use cudarc::driver::DriverError;
use gridguard_kernels::KernelError;

/// Why text is not a problem, or a problem was not run.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// Boxed, so that results stay small.
    kind: Box<ErrorKind>,
    message: String,
}

/// The kind of an [`Error`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no kernel of this name.
    UnknownKernel,
    /// Text is not a problem: the kernel has other types or sizes.
    NotAProblem,
    /// The kernel was not run.
    Kernel(KernelError),
    /// Device memory could not be used, or an earlier launch failed.
    Memory(DriverError),
    /// The host has too little memory for the tensors.
    HostMemory,
    /// A launch of more items than the problem has, or the handle of another case.
    Launch,
    /// The output differs from the reference or from the default's output.
    Mismatch,
}

impl Error {
    /// The kind.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The error of text that is not a size: a whole number.
    pub fn not_a_size(text: &str) -> Self {
        Self::not_a_problem(format!(
            "`{text}` is not a size: write whole numbers separated by x, such as 32768x4096"
        ))
    }

    pub(crate) fn not_a_problem(message: String) -> Self {
        Self::new(ErrorKind::NotAProblem, message)
    }

    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        Self { kind: Box::new(kind), message }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match &*self.kind {
            // The message is the kernel's own.
            ErrorKind::Kernel(error) => error.source(),
            ErrorKind::Memory(error) => Some(error),
            _ => None,
        }
    }
}

impl From<KernelError> for Error {
    fn from(error: KernelError) -> Self {
        let message = error.to_string();
        Self::new(ErrorKind::Kernel(error), message)
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        let message = format!("tensors could not be allocated, copied or read: {error}");
        Self::new(ErrorKind::Memory(error), message)
    }
}
