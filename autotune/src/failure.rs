//! Why a candidate could not be measured, and whether its process is still usable.

use gridguard::cuda::{CudaError, CudaErrorKind, DriverError, LaunchError, LaunchErrorKind};
use gridguard::{ContextState, HostError, PartialRun, Violations};
use gridguard_pipeline::ErrorKind;
use serde::{Deserialize, Serialize};

/// Why a candidate has no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// The compiled kernel does not allow the launch.
    Illegal,
    /// The kernel does not compile, or the driver rejected a launch.
    Launch,
    /// The candidate did not finish in time.
    Timeout,
    /// The output is wrong.
    Mismatch,
    /// The candidate broke the context or ended the process.
    Crash,
    /// The process was killed but has not ended, and may still use the device.
    Unended,
    /// Measuring has ended. The candidate is not the cause.
    Ended,
    /// Another process used the device, so the result does not count.
    Busy,
}

/// The failure of one candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct MeasureFailure {
    /// The kind.
    pub kind: FailureKind,
    /// The message.
    pub message: String,
}

/// The result of a measurement.
pub type Measured<T> = Result<T, MeasureFailure>;

impl FailureKind {
    /// Whether the process is unusable: its context is in error, or busy with endless work.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        match self {
            Self::Timeout | Self::Crash | Self::Unended | Self::Ended => true,
            Self::Illegal | Self::Launch | Self::Mismatch | Self::Busy => false,
        }
    }
}

impl MeasureFailure {
    /// A failure of `kind` with its message.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Converts cudarc's error of the driver call `call`.
    pub(crate) fn in_call(call: &str) -> impl Fn(cudarc::driver::DriverError) -> Self {
        move |error| {
            let text = |text: Result<&core::ffi::CStr, _>| {
                text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
            };
            let (name, description) = (text(error.error_name()), text(error.error_string()));
            let code = code_of(error);
            Self::new(kind_of(code), format!("{call} returned {name} ({code}): {description}"))
        }
    }
}

/// Converts these errors, each with its kind.
macro_rules! convert {
    ($($error:ty: $kind:expr;)*) => {$(
        impl From<$error> for MeasureFailure {
            fn from(error: $error) -> Self {
                let kind: fn(&$error) -> FailureKind = $kind;
                Self::new(kind(&error), error.to_string())
            }
        }
    )*};
}

convert! {
    DriverError: |error| kind_of(error.code);
    CudaError: of_cuda;
    LaunchError: |error| match error.kind() {
        _ if error.violations().is_some() => FailureKind::Illegal,
        LaunchErrorKind::Driver(error) => kind_of(error.code),
        LaunchErrorKind::Stopped(stopped) => kind_of(stopped.source.code),
        _ => FailureKind::Launch,
    };
    Violations: |_| FailureKind::Illegal;
    PartialRun<HostError>: |_| FailureKind::Launch;
    gridguard_pipeline::Error: of_pipeline;
}

fn of_pipeline(error: &gridguard_pipeline::Error) -> FailureKind {
    match error.kind() {
        ErrorKind::Illegal | ErrorKind::Alignment | ErrorKind::Budget { .. } => {
            FailureKind::Illegal
        }
        ErrorKind::Product => error
            .cause()
            .and_then(|cause| cause.downcast_ref())
            .map_or(FailureKind::Launch, of_cuda),
        // An error of the context surfaces again when the work is waited for.
        _ => FailureKind::Launch,
    }
}

const fn of_cuda(error: &CudaError) -> FailureKind {
    match error.kind() {
        CudaErrorKind::Driver(error) | CudaErrorKind::Refused { error, .. } => kind_of(error.code),
        _ => FailureKind::Launch,
    }
}

impl From<cudarc::driver::DriverError> for MeasureFailure {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Self::in_call("a driver call")(error)
    }
}

/// A crash if the context may be unusable afterwards, else a rejected launch.
const fn kind_of(code: i32) -> FailureKind {
    if ContextState::after(code).is_usable() { FailureKind::Launch } else { FailureKind::Crash }
}

#[allow(clippy::as_conversions, reason = "the discriminant of a C enum of int size")]
const fn code_of(error: cudarc::driver::DriverError) -> i32 {
    error.0 as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_may_break_the_context_are_crashes() {
        // Contained, illegal address, context destroyed, MPS client terminated, external device,
        // unknown; out of memory, invalid value, launch out of resources.
        assert!(
            [226, 700, 709, 810, 911, 999]
                .into_iter()
                .all(|code| kind_of(code) == FailureKind::Crash)
        );
        assert!([2, 1, 701].into_iter().all(|code| kind_of(code) == FailureKind::Launch));
    }

    #[test]
    fn failures_that_make_the_process_unusable_are_fatal() {
        use FailureKind::{Crash, Ended, Illegal, Launch, Mismatch, Timeout, Unended};
        assert!([Crash, Timeout, Unended, Ended].into_iter().all(FailureKind::is_fatal));
        assert!(![Illegal, Launch, Mismatch].into_iter().any(FailureKind::is_fatal));
    }
}
