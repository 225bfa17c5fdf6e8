//! Errors as the path of their enums, such as `LaunchError::Stopped/700 CUDA_ERROR_ILLEGAL_ADDRESS`.

use gridguard::cuda::{
    CudaError, DriverError, DriverUnavailable, ImageError, LaunchError, LoadError, NvrtcError,
    NvrtcUnavailable,
};
use gridguard::diagnose::{Diagnosis, Evidence, FailureId, diagnose};
use gridguard::profile::{ProfileError, ProfileNotice};
use gridguard::{BackoffError, FallbackReason, Guard};
use serde::{Deserialize, Serialize};

/// An error as it is told, or what came in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// The path, with the driver's code and name at its end where it has one.
    pub(crate) outcome: String,
    /// What a person reads.
    pub(crate) text: String,
    pub(crate) is_error: bool,
    pub(crate) code: Option<i32>,
    /// The number or the name that the diagnosis is about.
    pub(crate) diagnosed: Option<String>,
    /// Launches that can be to blame.
    pub(crate) blamed: Vec<Blamed>,
}

/// A launch that can be to blame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Blamed {
    pub(crate) kernel: String,
    pub(crate) start: u64,
    pub(crate) items: u64,
    /// Blocks along y, which are the items where the launch has no batch.
    pub(crate) blocks: u64,
}

impl Blamed {
    pub(crate) fn holds(&self, item: u64) -> bool {
        // One item with several blocks is a launch without a batch.
        let items = if self.items == 1 { self.blocks } else { self.items };
        (self.start..self.start + items).contains(&item)
    }
}

impl Told {
    /// What is no error.
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
        let diagnosis = error.diagnosis(&Evidence::default());
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
            ..Self::error(path, error.to_string(), Some(&diagnosis))
        }
    }

    fn with(self, text: String, diagnosis: Option<&Diagnosis>) -> Self {
        let Self { outcome, code, blamed, .. } = self;
        Self { code, blamed, ..Self::error(outcome, text, diagnosis) }
    }
}

/// An error that can be told.
pub(crate) trait Tell {
    fn told(&self) -> Told;
}

/// What `result` comes to: its error, or that there is none.
pub(crate) fn told<T, E: Tell>(result: &Result<T, E>) -> Told {
    match result {
        Ok(_) => Told::outcome("Ok"),
        Err(error) => error.told(),
    }
}

/// Why `guard` serves the host, where a device was wanted.
pub(crate) fn why_host(guard: &Guard) -> Option<Told> {
    match guard.fallback()? {
        FallbackReason::Cuda(reason) => Some(reason.told()),
        _ => None,
    }
}

impl Tell for CudaError {
    fn told(&self) -> Told {
        let told = match self {
            Self::Unavailable(reason) => unavailable(reason),
            Self::Driver(error) => Told::driver("CudaError::Driver", error),
            Self::Load(error) => load("CudaError::Load/", error),
            Self::NoSuchDevice { .. } => Told::outcome("CudaError::NoSuchDevice"),
            Self::Compile(error) => Told::outcome(format!("CudaError::Compile{}", compile(error))),
            other => Told::outcome(format!("an unknown CudaError {other:?}")),
        };
        told.with(self.to_string(), self.diagnosis().as_ref())
    }
}

fn unavailable(reason: &DriverUnavailable) -> Told {
    let path = "CudaError::Unavailable";
    match reason {
        DriverUnavailable::LibraryMissing { .. } => Told::outcome(format!("{path}/LibraryMissing")),
        DriverUnavailable::SymbolMissing { symbol, .. } => {
            Told::outcome(format!("{path}/SymbolMissing {symbol}"))
        }
        DriverUnavailable::OtherLibrary { .. } => Told::outcome(format!("{path}/OtherLibrary")),
        DriverUnavailable::TooOld { .. } => Told::outcome(format!("{path}/TooOld")),
        DriverUnavailable::InitFailed(error) => Told::driver(&format!("{path}/InitFailed"), error),
        DriverUnavailable::NoDevice { .. } => Told::outcome(format!("{path}/NoDevice")),
        other => Told::outcome(format!("an unknown DriverUnavailable {other:?}")),
    }
}

fn load(path: &str, error: &LoadError) -> Told {
    let variant = match error {
        LoadError::Refused { error, .. } => return Told::driver(&format!("{path}Refused"), error),
        LoadError::Driver(error) => return Told::driver(&format!("{path}Driver"), error),
        LoadError::Image(error) => return Told::outcome(format!("{path}Image/{}", image(error))),
        LoadError::WrongArchitecture { .. } => "WrongArchitecture",
        LoadError::PtxTooNew { .. } => "PtxTooNew",
        LoadError::NoSuchKernel { .. } => "NoSuchKernel",
        LoadError::Parameters { .. } => "Parameters",
        LoadError::NoDevice => "NoDevice",
        other => return Told::outcome(format!("an unknown LoadError {other:?}")),
    };
    Told::outcome(format!("{path}{variant}"))
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
        NvrtcError::Unavailable(NvrtcUnavailable::LibraryMissing { .. }) => {
            "/Unavailable/LibraryMissing".into()
        }
        NvrtcError::Unavailable(NvrtcUnavailable::SymbolMissing { symbol, .. }) => {
            format!("/Unavailable/SymbolMissing {symbol}")
        }
        NvrtcError::ZeroByte { .. } => "/ZeroByte".into(),
        NvrtcError::Compilation { .. } => "/Compilation".into(),
        NvrtcError::Call { call, .. } => format!("/Call {call}"),
        other => format!(" with an unknown NvrtcError {other:?}"),
    }
}

impl Tell for LoadError {
    fn told(&self) -> Told {
        load("LoadError::", self).with(self.to_string(), self.diagnosis().as_ref())
    }
}

impl Tell for ImageError {
    fn told(&self) -> Told {
        CudaError::Load(LoadError::Image(self.clone())).told()
    }
}

impl Tell for LaunchError {
    fn told(&self) -> Told {
        let variant = match self {
            Self::Driver(error) => Told::driver("LaunchError::Driver", error),
            Self::Stopped(stopped) => Told::driver("LaunchError::Stopped", &stopped.source),
            Self::Backoff(error) => {
                let variant = match &**error {
                    BackoffError::OutOfWorkspace { .. } => "OutOfWorkspace",
                    BackoffError::Allocation { .. } => "Allocation",
                    BackoffError::Launch { .. } => "Launch",
                    _ => "unknown",
                };
                let outcome = format!("LaunchError::Backoff/{variant}");
                match error.failure() {
                    Some((_, source)) => Told::driver(&outcome, source),
                    None => Told::outcome(outcome),
                }
            }
            Self::Invalid(_) => Told::outcome("LaunchError::Invalid"),
            Self::OtherKernel { .. } => Told::outcome("LaunchError::OtherKernel"),
            Self::OtherContext { what, .. } => {
                Told::outcome(format!("LaunchError::OtherContext {what}"))
            }
            Self::Args(_) => Told::outcome("LaunchError::Args"),
            Self::NotDependent { .. } => Told::outcome("LaunchError::NotDependent"),
            Self::Unknown(error) => {
                let Told { outcome, code, blamed, .. } = error.told();
                let outcome = format!("LaunchError::Unknown/{outcome}");
                Told { outcome, code, blamed, ..Told::default() }
            }
            Self::Unsupported { .. } => Told::outcome("LaunchError::Unsupported"),
            other => Told::outcome(format!("an unknown LaunchError {other:?}")),
        };
        variant.with(self.to_string(), self.diagnosis().as_ref())
    }
}

impl Tell for DriverError {
    fn told(&self) -> Told {
        Told::driver("DriverError", self)
    }
}

/// Errors of cudarc's own calls, which the program makes beside the guard.
impl Tell for cudarc::driver::DriverError {
    #[allow(clippy::as_conversions, reason = "the discriminant of a C enum of int size")]
    fn told(&self) -> Told {
        let code = self.0 as i32;
        let diagnosis = diagnose(&FailureId::from_code(code), &Evidence::default());
        let name = diagnosis.failure.entry().name;
        let path = format!("cudarc::DriverError/{code} {name}");
        Told { code: Some(code), ..Told::error(path, format!("{self:?}"), Some(&diagnosis)) }
    }
}

impl Tell for NvrtcError {
    fn told(&self) -> Told {
        CudaError::Compile(self.clone()).told()
    }
}

impl Tell for ProfileError {
    fn told(&self) -> Told {
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
        Told::error(format!("ProfileError::{variant}"), self.to_string(), None)
    }
}

impl Tell for ProfileNotice {
    fn told(&self) -> Told {
        let variant = match self {
            Self::OtherDevice(_) => "OtherDevice",
            Self::Unreadable(_) => "Unreadable",
            Self::Missing => "Missing",
            _ => "another",
        };
        Told::error(format!("ProfileNotice::{variant}"), self.to_string(), None)
    }
}
