//! What can go wrong between the guard and the driver.

use core::fmt;

use cudarc::driver::CudaContext;

use super::driver::{Driver, Handle, Status};
use super::driver_log::{self, DriverLog, Mark};
use super::image::ImageError;
use super::suspects::FaultSuspects;
use crate::launch::violation::Violations;
use crate::limits::ComputeCapability;
use crate::plan::arguments::ArgsError;
use crate::plan::backoff::OutOfWorkspace;
use crate::plan::run::PartialRun;

/// A driver call that failed, with the driver's own name and words for the error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverError {
    /// The call, such as `cuLaunchKernel`.
    pub call: &'static str,
    /// The `CUresult`.
    pub code: i32,
    /// Its name, such as `CUDA_ERROR_INVALID_VALUE`.
    pub name: String,
    /// The driver's description.
    pub description: Box<str>,
    /// In one box, since errors travel by value on the way of a launch.
    pub(super) background: Option<Box<Background>>,
}

/// What is known beyond the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Background {
    pub(super) driver_log: Option<DriverLog>,
    pub(super) blame: Option<FaultSuspects>,
}

impl Background {
    /// What is known about `call`, which has just answered `status` and began at `mark`, in
    /// `context` where that need not be the current one.
    pub(super) fn of(
        driver: &Driver,
        call: &str,
        status: Status,
        mark: Option<Mark>,
        context: Option<Handle>,
    ) -> Option<Box<Self>> {
        let driver_log = driver_log::since_last(driver, call, mark);
        let blame = FaultSuspects::of(driver, status, context);
        let known = driver_log.is_some() || blame.is_some();
        known.then(|| Box::new(Self { driver_log, blame }))
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, code, name, description, background: _ } = self;
        write!(f, "{call} answered {name} ({code})")?;
        if !description.is_empty() {
            write!(f, ": {description}")?;
        }
        if let Some(words) = self.driver_log() {
            write!(f, "; {words}")?;
        }
        self.suspects().map_or(Ok(()), |blame| write!(f, "; {blame}"))
    }
}

impl core::error::Error for DriverError {}

impl DriverError {
    /// What the driver logged about the call, where it keeps a log (CUDA 12.9 and later) and wrote
    /// something.
    #[must_use]
    pub fn driver_log(&self) -> Option<&DriverLog> {
        self.background.as_ref().and_then(|background| background.driver_log.as_ref())
    }

    /// Which launches are to blame, where the error is not the call's own but an earlier launch's.
    #[must_use]
    pub fn suspects(&self) -> Option<&FaultSuspects> {
        self.background.as_ref().and_then(|background| background.blame.as_ref())
    }

    /// The same error, of a call that waited for the newest launch at once.
    pub(super) fn at_a_check(mut self) -> Self {
        if let Some(background) = &mut self.background {
            background.blame = background.blame.take().map(FaultSuspects::at_a_check);
        }
        self
    }

    /// The same error, blamed on what is on record of `context` by now.
    pub(super) fn blamed_anew(mut self, driver: &Driver, context: Handle) -> Self {
        if let Some(background) = &mut self.background {
            background.blame = FaultSuspects::of(driver, self.code, Some(context));
        }
        self
    }

    /// A failure that cudarc reported, in `context` where there is one: cudarc reports what it
    /// recorded before it makes the context current.
    pub(super) fn from_cudarc(
        context: Option<&CudaContext>,
        call: &'static str,
        error: cudarc::driver::DriverError,
    ) -> Self {
        let text = |words: Result<&core::ffi::CStr, _>| {
            words.map(|text| text.to_string_lossy().into_owned()).ok()
        };
        let (code, driver) = (code_of(error), Driver::get().ok());
        let context = context.map(|context| context.cu_ctx().cast());
        Self {
            call,
            code,
            name: text(error.error_name()).unwrap_or_else(|| "unknown error".into()),
            description: text(error.error_string()).unwrap_or_default().into(),
            background: driver.and_then(|driver| Background::of(driver, call, code, None, context)),
        }
    }
}

#[allow(clippy::as_conversions, reason = "the discriminant of a C enum of int size")]
const fn code_of(error: cudarc::driver::DriverError) -> i32 {
    error.0 as i32
}

/// Why there is no driver to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverUnavailable {
    /// The loader finds no libcuda.
    LibraryMissing {
        /// Each name tried, with the loader's words.
        tried: Vec<(String, String)>,
    },
    /// libcuda lacks a function: it is too old, or not the driver.
    SymbolMissing {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// cudarc calls another library than the guard.
    OtherLibrary {
        /// The guard's.
        ours: String,
    },
    /// The driver supports only an older CUDA.
    TooOld {
        /// The driver's CUDA version: 1000 * major + 10 * minor.
        version: i32,
        /// The oldest that serves.
        oldest: i32,
    },
    /// The driver did not initialise.
    InitFailed(DriverError),
    /// The driver sees no device.
    NoDevice {
        /// The value of `CUDA_VISIBLE_DEVICES`, where it is set and may hide them.
        cuda_visible_devices: Option<String>,
        /// The CUDA version that the driver supports, where it tells: 1000 * major + 10 * minor.
        driver_version: Option<i32>,
    },
}

impl DriverUnavailable {
    pub(super) fn no_device(driver: &Driver) -> Self {
        let value = std::env::var_os("CUDA_VISIBLE_DEVICES");
        let cuda_visible_devices = value.map(|value| value.to_string_lossy().into_owned());
        Self::NoDevice { cuda_visible_devices, driver_version: driver.version().ok() }
    }
}

impl fmt::Display for DriverUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LibraryMissing { tried } => {
                write!(f, "no CUDA driver library found (tried {})", names(tried))
            }
            Self::SymbolMissing { library, symbol } => {
                write!(f, "{library} has no {symbol}: it is too old, or not the CUDA driver")
            }
            Self::OtherLibrary { ours } => write!(
                f,
                "cudarc finds another libcuda than {ours}: take what is no driver, such as a \
                 toolkit's stub, off the library path"
            ),
            Self::TooOld { version, oldest } => write!(
                f,
                "the driver supports CUDA {}, at least {} is needed: update the driver",
                cuda_version(*version),
                cuda_version(*oldest)
            ),
            Self::InitFailed(error) => write!(f, "the CUDA driver did not initialise: {error}"),
            Self::NoDevice { cuda_visible_devices: None, .. } => {
                f.write_str("the CUDA driver sees no device")
            }
            Self::NoDevice { cuda_visible_devices: Some(value), .. } => write!(
                f,
                "the CUDA driver sees no device under CUDA_VISIBLE_DEVICES={value:?}: unset it, or \
                 name a device that exists"
            ),
        }
    }
}

impl core::error::Error for DriverUnavailable {}

/// The names, each with the loader's words where these say more than that it is not there.
pub(super) fn names(tried: &[(String, String)]) -> String {
    let one = |(name, words): &(String, String)| match words.contains("No such file") {
        true => name.clone(),
        false => format!("{name}: {words}"),
    };
    tried.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// `12.8` for 12080.
pub(super) fn cuda_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Why there is no NVRTC to compile with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcUnavailable {
    /// The loader finds no libnvrtc.
    #[error(
        "no NVRTC library found (tried {}): install the CUDA toolkit's libnvrtc, or add its \
         folder to the library path",
        names(tried)
    )]
    LibraryMissing {
        /// Each name tried, with the loader's words.
        tried: Vec<(String, String)>,
    },
    /// libnvrtc lacks a function: it is too old, or not NVRTC.
    #[error("{library} has no {symbol}: it is too old, or not NVRTC")]
    SymbolMissing {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
    },
}

/// Why a source did not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// There is no compiler.
    #[error(transparent)]
    Unavailable(#[from] NvrtcUnavailable),
    /// The source or an option holds a zero byte.
    #[error("{what} holds a zero byte")]
    ZeroByte {
        /// Which text.
        what: &'static str,
    },
    /// The compiler refused the source.
    #[error("{program} did not compile for {architecture}: {name} ({code})\n{log}")]
    Compilation {
        /// The program's name.
        program: String,
        /// The architecture asked for.
        architecture: String,
        /// The `nvrtcResult`.
        code: i32,
        /// Its name.
        name: String,
        /// The compiler's log.
        log: String,
    },
    /// Another call of the library failed.
    #[error("{call} answered {name} ({code})")]
    Call {
        /// The call.
        call: &'static str,
        /// The `nvrtcResult`.
        code: i32,
        /// Its name.
        name: String,
    },
}

/// Why an image or a kernel in it could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The image is not whole, or no image at all; the driver was not asked.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The image is for another architecture.
    #[error("the image is for {image}, {device} has compute capability {capability}")]
    WrongArchitecture {
        /// What the image was compiled for, as far as it says.
        image: String,
        /// The device.
        device: String,
        /// Its compute capability.
        capability: ComputeCapability,
    },
    /// The PTX is newer than the driver.
    #[error(
        "the PTX version {ptx} is newer than the driver, which supports CUDA {driver}: update the \
         driver, or compile with an older toolkit"
    )]
    PtxTooNew {
        /// The version that the PTX states.
        ptx: String,
        /// The CUDA version that the driver supports.
        driver: String,
    },
    /// The driver refused the image.
    #[error("{error}{}", log_lines(log))]
    Refused {
        /// The refusal.
        error: DriverError,
        /// What the driver's compiler said, if anything.
        log: String,
    },
    /// The module has no kernel of this name.
    #[error("the module has no kernel {name:?}{}", known_kernels(known))]
    NoSuchKernel {
        /// The name asked for.
        name: String,
        /// The kernels that the image is known to have, where it tells.
        known: Vec<String>,
    },
    /// The kernel takes other parameters than were declared.
    #[error("kernel {name} takes parameters of {known:?} bytes, declared are {declared:?}")]
    Parameters {
        /// The kernel's name.
        name: String,
        /// Bytes of each parameter, as the driver tells.
        known: Vec<usize>,
        /// Bytes of each parameter, as declared.
        declared: Vec<usize>,
    },
    /// The guard serves the host by choice.
    #[error("the guard serves the host, there is no device to load an image into")]
    NoDevice,
    /// The kernel's limits could not be queried, or another driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

fn log_lines(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{log}") }
}

fn known_kernels(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!(", it has {}", known.join(", ")) }
}

/// Why a plan did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The request breaks rules; nothing was launched.
    #[error(transparent)]
    Invalid(#[from] Violations),
    /// The plan was made for the limits of another kernel; nothing was launched.
    #[error("the plan was made for another kernel than {kernel}: plan with its own limits")]
    OtherKernel {
        /// The kernel that was to be launched.
        kernel: String,
    },
    /// Guard, stream, memory and kernel belong to different contexts; nothing was launched.
    #[error("{what} belongs to another context than kernel {kernel}")]
    OtherContext {
        /// What does: the guard, the stream or an argument's memory.
        what: &'static str,
        /// The kernel that was to be launched.
        kernel: String,
    },
    /// The kernel is one that cudarc loaded, of which nobody declared what it takes; nothing was
    /// launched.
    #[error(
        "nobody declared what kernel {kernel} takes: launch it through launch_builder_guarded, or \
         load it with Module::kernel"
    )]
    Undeclared {
        /// The kernel.
        kernel: String,
    },
    /// The arguments do not fit the kernel or the batch; nothing was launched.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// The launch may begin before the one before it has ended, and nobody promised that the
    /// kernel waits for that itself; nothing was launched.
    #[error(
        "kernel {kernel} was not declared to wait for the launch before it: declare that with \
         Kernel::with_dependent_launches, or launch it without"
    )]
    NotDependent {
        /// The kernel.
        kernel: String,
    },
    /// The limits of the kernel could not be queried; nothing was launched.
    #[error("the limits of the kernel are not known: {0}")]
    Unknown(Box<CudaError>),
    /// A driver call failed: before any launch of a plan, or the one of a launch builder.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver lacks a function that the launch needs.
    #[error("the driver has no {symbol}, which {what} need: update the driver")]
    Unsupported {
        /// The function.
        symbol: &'static str,
        /// What needs it.
        what: &'static str,
    },
    /// The driver refused a launch that was valid; earlier chunks were submitted.
    #[error(transparent)]
    Stopped(#[from] PartialRun<DriverError>),
    /// A launch that brings its own workspace came to an end before the batch did.
    #[error(transparent)]
    OutOfWorkspace(#[from] Box<OutOfWorkspace<DriverError>>),
}

/// Any failure of the CUDA room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver to talk to.
    #[error(transparent)]
    Unavailable(#[from] DriverUnavailable),
    /// There is no such device.
    #[error("there is no device {ordinal}: {}", visible(*count))]
    NoSuchDevice {
        /// The ordinal asked for.
        ordinal: usize,
        /// Devices that the driver shows.
        count: usize,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// An image could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A source could not be compiled.
    #[error(transparent)]
    Compile(#[from] NvrtcError),
}

fn visible(count: usize) -> String {
    match count {
        1 => "the driver shows 1, number 0".into(),
        count => format!("the driver shows {count}, numbers 0 to {}", count.saturating_sub(1)),
    }
}
