//! Describes errors by the path of their enums, such as `LaunchError::Stopped/700 CUDA_ERROR_ILLEGAL_ADDRESS`.

use gridguard::cuda::{
    CudaError, DriverError, ImageError, LaunchError, LibraryUnavailable, LoadError, NvrtcError,
};
use gridguard::profile::{ProfileError, ProfileNotice};
use gridguard::{FallbackReason, Guard};
use gridguard_diagnose::{Diagnosis, Evidence, FailureId, diagnose};
use gridguard_report::Diagnose;
use serde::{Deserialize, Serialize};

/// An error, or the outcome without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObservedError {
    /// The path, followed by the driver's code and name if it has one.
    pub(crate) outcome: String,
    /// The message.
    pub(crate) text: String,
    pub(crate) is_error: bool,
    pub(crate) code: Option<i32>,
    /// The number or name that the diagnosis is for.
    pub(crate) diagnosed: Option<String>,
    /// The suspected launches.
    pub(crate) blamed: Vec<Blamed>,
}

/// A suspected launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Blamed {
    pub(crate) kernel: String,
    pub(crate) start: u64,
    pub(crate) items: u64,
    /// Blocks along y, which are the items of a launch without a batch.
    pub(crate) blocks: u64,
}

impl Blamed {
    pub(crate) fn holds(&self, item: u64) -> bool {
        // A launch without a batch has one item with several blocks.
        let items = if self.items == 1 { self.blocks } else { self.items };
        (self.start..self.start + items).contains(&item)
    }
}

impl ObservedError {
    /// An outcome without an error.
    pub(crate) fn outcome(outcome: impl Into<String>) -> Self {
        Self { outcome: outcome.into(), ..Self::default() }
    }

    fn error(path: impl Into<String>, text: String, diagnosis: Option<&Diagnosis>) -> Self {
        let about = |diagnosis: &Diagnosis| match diagnosis.failure.number() {
            Some(number) => number.to_string(),
            None => diagnosis.failure.entry().name.to_owned(),
        };
        Self {
            outcome: path.into(),
            text,
            is_error: true,
            diagnosed: diagnosis.map(about),
            ..Self::default()
        }
    }

    fn driver(path: &str, error: &DriverError) -> Self {
        let diagnosis = error.diagnosis();
        let path = format!("{path}/{} {}", error.code, error.name);
        let launches = error.suspects().map(|blame| blame.launches().iter());
        let blamed = launches.into_iter().flatten().map(|launch| Blamed {
            kernel: launch.kernel.to_string(),
            start: launch.chunk.start,
            items: launch.chunk.items,
            blocks: launch.grid[1].into(),
        });
        Self {
            code: Some(error.code),
            blamed: blamed.collect(),
            ..Self::error(path, error.to_string(), diagnosis.as_ref())
        }
    }

    fn with(self, text: String, diagnosis: Option<&Diagnosis>) -> Self {
        let Self { outcome, code, blamed, .. } = self;
        Self { code, blamed, ..Self::error(outcome, text, diagnosis) }
    }
}

/// An error that can be described.
pub(crate) trait Describe {
    fn describe(&self) -> ObservedError;
}

/// Describes the error of `result`, or that there is none.
pub(crate) fn describe<T, E: Describe>(result: &Result<T, E>) -> ObservedError {
    match result {
        Ok(_) => ObservedError::outcome("Ok"),
        Err(error) => error.describe(),
    }
}

/// Why `guard` fell back to the CPU.
pub(crate) fn why_host(guard: &Guard) -> Option<ObservedError> {
    match guard.fallback()? {
        FallbackReason::Cuda(reason) => Some(reason.describe()),
        _ => None,
    }
}

impl Describe for CudaError {
    fn describe(&self) -> ObservedError {
        let described = match self {
            Self::Unavailable(reason) => unavailable(reason),
            Self::Driver(error) => ObservedError::driver("CudaError::Driver", error),
            Self::Load(error) => load("CudaError::Load/", error),
            Self::NoSuchDevice { .. } => ObservedError::outcome("CudaError::NoSuchDevice"),
            Self::Compile(error) => {
                ObservedError::outcome(format!("CudaError::Compile{}", compile(error)))
            }
            other => ObservedError::outcome(format!("an unknown CudaError {other:?}")),
        };
        described.with(self.to_string(), self.diagnosis().as_ref())
    }
}

fn unavailable(reason: &LibraryUnavailable) -> ObservedError {
    let path = "CudaError::Unavailable";
    match reason {
        LibraryUnavailable::LibraryMissing { .. } => {
            ObservedError::outcome(format!("{path}/LibraryMissing"))
        }
        LibraryUnavailable::SymbolMissing { symbol, .. } => {
            ObservedError::outcome(format!("{path}/SymbolMissing {symbol}"))
        }
        LibraryUnavailable::OtherLibrary { .. } => {
            ObservedError::outcome(format!("{path}/OtherLibrary"))
        }
        LibraryUnavailable::TooOld { .. } => ObservedError::outcome(format!("{path}/TooOld")),
        LibraryUnavailable::InitFailed(error) => {
            ObservedError::driver(&format!("{path}/InitFailed"), error)
        }
        LibraryUnavailable::NoDevice { .. } => ObservedError::outcome(format!("{path}/NoDevice")),
        other => ObservedError::outcome(format!("an unknown LibraryUnavailable {other:?}")),
    }
}

fn load(path: &str, error: &LoadError) -> ObservedError {
    let variant = match error {
        LoadError::Refused { error, .. } => {
            return ObservedError::driver(&format!("{path}Refused"), error);
        }
        LoadError::Driver(error) => return ObservedError::driver(&format!("{path}Driver"), error),
        LoadError::Image(error) => {
            return ObservedError::outcome(format!("{path}Image/{}", image(error)));
        }
        LoadError::WrongArchitecture { .. } => "WrongArchitecture",
        LoadError::PtxTooNew { .. } => "PtxTooNew",
        LoadError::NoSuchKernel { .. } => "NoSuchKernel",
        LoadError::Parameters { .. } => "Parameters",
        LoadError::NoDevice => "NoDevice",
        other => return ObservedError::outcome(format!("an unknown LoadError {other:?}")),
    };
    ObservedError::outcome(format!("{path}{variant}"))
}

fn image(error: &ImageError) -> String {
    match error {
        ImageError::Empty => "Empty".into(),
        ImageError::Unknown { .. } => "Unknown".into(),
        ImageError::Truncated { part, .. } => format!("Truncated {part}"),
        ImageError::Damaged { part, .. } => format!("Damaged {part}"),
        ImageError::ZeroByte { .. } => "ZeroByte".into(),
        other => format!("an unknown ImageError {other:?}"),
    }
}

fn compile(error: &NvrtcError) -> String {
    match error {
        NvrtcError::Unavailable(LibraryUnavailable::LibraryMissing { .. }) => {
            "/Unavailable/LibraryMissing".into()
        }
        NvrtcError::Unavailable(LibraryUnavailable::SymbolMissing { symbol, .. }) => {
            format!("/Unavailable/SymbolMissing {symbol}")
        }
        NvrtcError::ZeroByte { .. } => "/ZeroByte".into(),
        NvrtcError::Compilation { .. } => "/Compilation".into(),
        NvrtcError::Call { call, .. } => format!("/Call {call}"),
        other => format!(" with an unknown NvrtcError {other:?}"),
    }
}

impl Describe for LoadError {
    fn describe(&self) -> ObservedError {
        load("LoadError::", self).with(self.to_string(), self.diagnosis().as_ref())
    }
}

impl Describe for ImageError {
    fn describe(&self) -> ObservedError {
        CudaError::Load(LoadError::Image(self.clone())).describe()
    }
}

impl Describe for LaunchError {
    fn describe(&self) -> ObservedError {
        let variant = match self {
            Self::Driver(error) => ObservedError::driver("LaunchError::Driver", error),
            Self::Stopped(stopped) => {
                ObservedError::driver("LaunchError::Stopped", &stopped.source)
            }
            Self::Workspace(error) => {
                let variant = if error.is_smallest { "OutOfMemory" } else { "Failed" };
                ObservedError::driver(&format!("LaunchError::Workspace/{variant}"), &error.source)
            }
            Self::Invalid(_) => ObservedError::outcome("LaunchError::Invalid"),
            Self::OtherKernel { .. } => ObservedError::outcome("LaunchError::OtherKernel"),
            Self::OtherContext { what, .. } => {
                ObservedError::outcome(format!("LaunchError::OtherContext {what}"))
            }
            Self::Args(_) => ObservedError::outcome("LaunchError::Args"),
            Self::NotDependent { .. } => ObservedError::outcome("LaunchError::NotDependent"),
            Self::Unknown(error) => {
                let ObservedError { outcome, code, blamed, .. } = error.describe();
                let outcome = format!("LaunchError::Unknown/{outcome}");
                ObservedError { outcome, code, blamed, ..ObservedError::default() }
            }
            Self::Unsupported { .. } => ObservedError::outcome("LaunchError::Unsupported"),
            other => ObservedError::outcome(format!("an unknown LaunchError {other:?}")),
        };
        variant.with(self.to_string(), self.diagnosis().as_ref())
    }
}

impl Describe for DriverError {
    fn describe(&self) -> ObservedError {
        ObservedError::driver("DriverError", self)
    }
}

/// Errors of cudarc's own calls, which the program makes apart from the guard.
impl Describe for cudarc::driver::DriverError {
    #[allow(clippy::as_conversions, reason = "the discriminant of a C enum of int size")]
    fn describe(&self) -> ObservedError {
        let code = self.0 as i32;
        let diagnosis = diagnose(&FailureId::from_code(code), &Evidence::default());
        let name = diagnosis.failure.entry().name;
        let path = format!("cudarc::DriverError/{code} {name}");
        ObservedError {
            code: Some(code),
            ..ObservedError::error(path, format!("{self:?}"), Some(&diagnosis))
        }
    }
}

impl Describe for NvrtcError {
    fn describe(&self) -> ObservedError {
        CudaError::Compile(self.clone()).describe()
    }
}

impl Describe for ProfileError {
    fn describe(&self) -> ObservedError {
        let cause = match self {
            Self::NotReplaced { reason, .. } => reason,
            other => other,
        };
        let variant = match cause {
            Self::OtherDevice { .. } => "OtherDevice",
            Self::Unreadable { .. } => "Unreadable",
            Self::Write { .. } => "Write",
            _ => "another",
        };
        ObservedError::error(format!("ProfileError::{variant}"), self.to_string(), None)
    }
}

impl Describe for ProfileNotice {
    fn describe(&self) -> ObservedError {
        let variant = match self {
            Self::OtherDevice(_) => "OtherDevice",
            Self::Unreadable(_) => "Unreadable",
            Self::Missing => "Missing",
            _ => "another",
        };
        ObservedError::error(format!("ProfileNotice::{variant}"), self.to_string(), None)
    }
}
