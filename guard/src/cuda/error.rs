//! Errors of the CUDA driver as a whole, of NVRTC, and of loading and launching kernels.

use derive_more::Display;
#[cfg(feature = "ptx")]
use gridguard_ptx::{PtxError, Refusal};

use crate::cuda::driver::error::DriverError;
use crate::image::ImageError;
use crate::launch::violation::Violations;
use crate::limits::ComputeCapability;
use crate::plan::arguments::ArgsError;
use crate::plan::backoff::WorkspaceError;
use crate::plan::run::PartialRun;

/// A library of NVIDIA's that the guard loads.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[display("{}{}", if *self == Self::Driver { "the " } else { "" }, self.names()[1])]
#[non_exhaustive]
pub enum CudaLibrary {
    /// libcuda, the driver.
    Driver,
    /// libnvrtc.
    Nvrtc,
    /// libcublasLt.
    CublasLt,
}

impl CudaLibrary {
    /// Its file name without suffix, and its name.
    pub(crate) const fn names(self) -> [&'static str; 2] {
        match self {
            Self::Driver => ["libcuda", "CUDA driver"],
            Self::Nvrtc => ["libnvrtc", "NVRTC"],
            Self::CublasLt => ["libcublasLt", "cuBLASLt"],
        }
    }
}

/// Why a device, an image, a kernel or the compiler cannot be used.
///
/// The message says what to change. The [kind](Self::kind) tells apart what a program may handle.
#[derive(Clone, derive_more::Debug, PartialEq, Eq, thiserror::Error)]
#[debug("{_0:?}")]
#[error(transparent)]
pub struct CudaError(Box<CudaErrorKind>);

impl CudaError {
    /// The kind, with what the message states.
    pub const fn kind(&self) -> &CudaErrorKind {
        &self.0
    }

    /// The failed call of the driver, if that is the error.
    pub const fn driver(&self) -> Option<&DriverError> {
        match self.kind() {
            CudaErrorKind::Driver(error)
            | CudaErrorKind::InitFailed(error)
            | CudaErrorKind::Refused { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl<E> From<E> for CudaError
where
    CudaErrorKind: From<E>,
{
    #[cold]
    fn from(error: E) -> Self {
        let error = Self(Box::new(error.into()));
        // No launch is under way: its errors are those of `LaunchError`.
        error.driver().inspect(|error| error.report());
        error
    }
}

/// The kind of a [`CudaError`]. A version is `1000 * major + 10 * minor`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum CudaErrorKind {
    /// The loader finds no such library.
    #[error("{}", missing(*of, tried))]
    LibraryMissing { of: CudaLibrary, tried: Vec<(String, String)> },
    /// The library lacks a function: it is too old, or another one.
    #[error("{library} has no {symbol}: it is too old, or not {of}")]
    SymbolMissing { of: CudaLibrary, library: String, symbol: &'static str },
    /// cudarc loads another driver library than the guard.
    #[error(
        "cudarc loads another libcuda than {ours}: remove libraries that are no driver, such as a \
         toolkit's stub, from the library path"
    )]
    OtherLibrary { ours: String },
    /// The driver supports only an older CUDA.
    #[error(
        "the driver supports CUDA {}, at least {} is needed: update the driver",
        cuda_version(*version),
        cuda_version(*oldest)
    )]
    TooOld { version: i32, oldest: i32 },
    /// The driver did not initialise.
    #[error("the CUDA driver did not initialise: {0}")]
    InitFailed(DriverError),
    /// The driver sees no device. The version is the newest CUDA that the driver supports, if known.
    #[error("the CUDA driver sees no device{}", hidden(cuda_visible_devices.as_deref()))]
    NoDevice { cuda_visible_devices: Option<String>, driver_version: Option<i32> },
    /// There is no such device.
    #[error("there is no device {ordinal}: {}", visible(*count))]
    NoSuchDevice { ordinal: usize, count: usize },
    /// The source or an option contains a zero byte.
    #[error("{what} contains a zero byte")]
    ZeroByte { what: &'static str },
    /// The compiler rejected the source.
    #[error("{program} did not compile for {architecture}: {name} ({code})\n{log}")]
    Compilation { program: String, architecture: String, code: i32, name: String, log: String },
    /// Another call of NVRTC failed.
    #[error("{call} returned {name} ({code})")]
    Compiler { call: &'static str, code: i32, name: String },
    /// The image is incomplete or not an image at all; the driver was not called.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The image is for another architecture.
    #[error("the image is for {image}, but {device} has compute capability {capability}")]
    WrongArchitecture { image: String, device: String, capability: ComputeCapability },
    /// The PTX is newer than the driver.
    #[error(
        "the PTX version {ptx} is newer than the driver, which supports CUDA {driver}: update the \
         driver, or compile with an older toolkit"
    )]
    PtxTooNew { ptx: String, driver: String },
    /// The PTX cannot be rewritten.
    #[cfg(feature = "ptx")]
    #[error("the PTX cannot be rewritten: {0}")]
    Rewrite(#[from] PtxError),
    /// The driver rejected the image.
    #[error("{error}{}", log_lines(log))]
    Refused { error: DriverError, log: String },
    /// The module has no kernel of this name.
    #[error("the module has no kernel {name:?}{}", known_kernels(known))]
    NoSuchKernel { name: String, known: Vec<String> },
    /// The kernel's parameters differ from the declared ones.
    #[error("kernel {name} takes parameters of {known:?} bytes, but {declared:?} are declared")]
    Parameters { name: String, known: Vec<usize>, declared: Vec<usize> },
    /// The guard runs on the host by choice.
    #[error("the guard runs on the host: it has no device to load an image into")]
    OnHost,
    /// Another call of the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

fn hidden(cuda_visible_devices: Option<&str>) -> String {
    cuda_visible_devices.map_or_else(String::new, |value| {
        format!(" under CUDA_VISIBLE_DEVICES={value:?}: unset it, or name a device that exists")
    })
}

/// Names each attempt, with the loader's message unless that only says that there is no such file.
fn missing(of: CudaLibrary, tried: &[(String, String)]) -> String {
    let one = |(name, message): &(String, String)| match message.contains("No such file") {
        true => name.clone(),
        false => format!("{name}: {message}"),
    };
    let tried = tried.iter().map(one).collect::<Vec<_>>().join(", ");
    let [file, name] = of.names();
    let remedy = match of {
        CudaLibrary::Driver => String::new(),
        _ => format!(": install the CUDA toolkit's {file}, or add its folder to the library path"),
    };
    format!("no {name} library found (tried {tried}){remedy}")
}

/// `12.8` for 12080.
pub(crate) fn cuda_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn visible(count: usize) -> String {
    match count {
        1 => "one is visible, device 0".into(),
        count => format!("{count} are visible, devices 0 to {}", count.saturating_sub(1)),
    }
}

fn log_lines(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{log}") }
}

fn known_kernels(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!(": it has {}", known.join(", ")) }
}

/// Why a plan was not launched, or not to its end.
///
/// The message says what to change. The [kind](Self::kind) tells apart what a program may handle.
// As long as a pointer, so that the launch path returns it in registers.
#[derive(Clone, derive_more::Debug, PartialEq, Eq, thiserror::Error)]
#[debug("{_0:?}")]
#[error(transparent)]
pub struct LaunchError(Box<LaunchErrorKind>);

impl LaunchError {
    /// The kind, with what the message states.
    pub const fn kind(&self) -> &LaunchErrorKind {
        &self.0
    }

    /// The rules that the launch breaks, if that is why nothing was launched.
    pub const fn violations(&self) -> Option<&Violations> {
        match self.kind() {
            LaunchErrorKind::Invalid(violations) => Some(violations),
            #[cfg(feature = "ptx")]
            LaunchErrorKind::NotRewritten { violations, .. } => Some(violations),
            _ => None,
        }
    }

    /// The failed call of the driver, if that is the error.
    pub const fn driver(&self) -> Option<&DriverError> {
        match self.kind() {
            LaunchErrorKind::Driver(error) => Some(error),
            LaunchErrorKind::Stopped(stopped) => Some(&stopped.source),
            LaunchErrorKind::Workspace(error) => Some(&error.source),
            LaunchErrorKind::Unknown(error) => error.driver(),
            _ => None,
        }
    }
}

impl<E> From<E> for LaunchError
where
    LaunchErrorKind: From<E>,
{
    #[cold]
    fn from(error: E) -> Self {
        Self(Box::new(error.into()))
    }
}

/// The kind of a [`LaunchError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum LaunchErrorKind {
    /// The request breaks rules; nothing was launched.
    #[error(transparent)]
    Invalid(#[from] Violations),
    /// The grid is too large, and the kernel has no forms for parts of it; nothing was launched.
    #[cfg(feature = "ptx")]
    #[error("{violations}\nthe kernel could not be rewritten: {refusal}")]
    NotRewritten { violations: Violations, refusal: Box<Refusal> },
    /// The plan was made for the limits of another kernel; nothing was launched.
    #[error("the plan was made for the limits of another kernel: plan with the limits of {kernel}")]
    OtherKernel { kernel: String },
    /// Guard, stream, memory and kernel belong to different contexts; nothing was launched.
    #[error("{what} and kernel {kernel} belong to different contexts")]
    OtherContext { what: &'static str, kernel: String },
    /// The kernel was made by a launch builder, so its parameters are not declared; nothing was launched.
    #[error(
        "kernel {kernel} has no declared parameters: launch it with a builder or launch_raw, or declare \
         them with Kernel::from_cudarc"
    )]
    Undeclared { kernel: String },
    /// The arguments do not fit the kernel or the batch; nothing was launched.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// The request is dependent (programmatic dependent launch), but the kernel was not declared to
    /// wait for the launch before it; nothing was launched.
    #[error(
        "kernel {kernel} is not declared to wait for the launch before it: declare it with \
         Kernel::with_dependent_launches, or do not request a dependent launch"
    )]
    NotDependent { kernel: String },
    /// The stream is being captured, and the graph would hold neither kernel nor memory. Nothing was
    /// launched, unless another thread began the capture during the call. Then the last launch may have run or
    /// not, and the capture yields no graph.
    #[error(
        "the stream is being captured, and a graph keeps neither kernel {kernel} nor its memory alive: \
         launch within capture_launches, or after the capture"
    )]
    Captured { kernel: String },
    /// The limits of the kernel could not be queried; nothing was launched.
    #[error("the limits of the kernel could not be queried: {0}")]
    Unknown(CudaError),
    /// A driver call failed before the first launch.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver lacks a function that the launch needs.
    #[error("the driver lacks {symbol}, which {what} need: update the driver")]
    Unsupported { symbol: &'static str, what: &'static str },
    /// The driver refused a valid launch, or another thread began to capture the stream (error 900). Earlier
    /// chunks were submitted. The capture may have taken the last of them, which then never runs.
    #[error(transparent)]
    Stopped(#[from] PartialRun<DriverError>),
    /// The workspace of a launch could not be allocated; nothing was launched.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError<DriverError>),
}
