//! A row of the table of failures.

use core::fmt;

/// Who reports a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Origin {
    /// The CUDA driver, and the runtime in its own words.
    Driver,
    /// The CUDA runtime alone.
    Runtime,
    /// The loader of shared libraries.
    Loader,
    /// The kernel's driver module, in the system log.
    Xid,
    /// cuBLAS.
    Cublas,
    /// cuDNN.
    Cudnn,
    /// NCCL.
    Nccl,
    /// PyTorch.
    Torch,
    /// Triton.
    Triton,
    /// vLLM.
    Vllm,
    /// XLA, which JAX and TensorFlow compile with, and TensorFlow itself.
    Xla,
    /// NVRTC.
    Nvrtc,
    /// cuFFT.
    Cufft,
    /// cuSOLVER.
    Cusolver,
    /// NVML, which `nvidia-smi` asks.
    Nvml,
    /// Docker, Podman, Kubernetes: who gives a container its devices.
    Container,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "CUDA driver",
            Self::Runtime => "CUDA runtime",
            Self::Loader => "library loader",
            Self::Xid => "system log",
            Self::Cublas => "cuBLAS",
            Self::Cudnn => "cuDNN",
            Self::Nccl => "NCCL",
            Self::Torch => "PyTorch",
            Self::Triton => "Triton",
            Self::Vllm => "vLLM",
            Self::Xla => "XLA",
            Self::Nvrtc => "NVRTC",
            Self::Cufft => "cuFFT",
            Self::Cusolver => "cuSOLVER",
            Self::Nvml => "NVML",
            Self::Container => "container runtime",
        })
    }
}

/// A failure, what it means and where it usually comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Who reports it.
    pub origin: Origin,
    /// Its number, where it has one; the runtime's is the same as the driver's.
    pub number: Option<i32>,
    /// Its number in the runtime before CUDA 10.1, where that was another.
    pub former_number: Option<i32>,
    /// Its name: the driver's where the driver has one.
    pub name: &'static str,
    /// The runtime's name for a failure of the driver.
    pub runtime_name: Option<&'static str>,
    /// The words of its messages, the usual ones first.
    pub wordings: &'static [&'static str],
    /// What it means.
    pub meaning: &'static str,
    /// What it is mistaken for, and why it is not that.
    pub mistaken_for: Option<&'static str>,
    /// Whether the context is lost: every later call answers with an error.
    pub sticky: bool,
    /// Whether it is reported by whatever call comes next, long after the one at fault.
    pub late: bool,
    /// Whether it only says that something beneath failed, which another message names.
    pub wraps: bool,
    /// Whether it is what later calls say once another failure has cost them the context.
    pub follows: bool,
    /// Whether no release of CUDA since 10.1 answers so.
    pub retired: bool,
    /// What usually causes it, the likeliest first.
    pub usual_causes: &'static [UsualCause],
    /// Commands that tell more.
    pub commands: &'static [&'static str],
}

/// A usual cause and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsualCause {
    /// The cause.
    pub what: &'static str,
    /// The way out.
    pub remedy: &'static str,
    /// The evidence that speaks for it or against it.
    pub(super) hint: Option<Hint>,
}

/// Which evidence decides on a usual cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// Sizes of the launch: rules that it breaks.
    Sizes,
    /// Other rules that the launch may break; a check may not know enough to exclude them.
    Rules,
    /// More memory is asked for than is free.
    TooLittleFree,
    /// Hardly any memory is free, for whatever a library sets up.
    LittleFree,
    /// Enough memory is free, but not in one piece, or held back by an allocator.
    Fragments,
    /// Stacks and local memory of threads, which the free memory does not show.
    LocalMemory,
    /// Another process holds the memory.
    OtherProcess,
    /// More memory is asked for than the device has.
    AbsurdSize,
    /// No code for the device's architecture.
    Architecture,
    /// The driver is older than what the program was built with.
    DriverAge,
    /// No device is visible.
    NoDevice,
    /// The ordinal is beyond the visible devices.
    Ordinal,
    /// A launch before the call that reports.
    EarlierLaunch,
    /// A failed assertion of device code.
    Assertion,
}

/// A usual cause that no evidence decides on.
pub(super) const fn cause(what: &'static str, remedy: &'static str) -> UsualCause {
    UsualCause { what, remedy, hint: None }
}

/// A usual cause that evidence may decide on.
pub(super) const fn hinted(hint: Hint, what: &'static str, remedy: &'static str) -> UsualCause {
    UsualCause { what, remedy, hint: Some(hint) }
}

impl Failure {
    /// A row; the methods below add what it has beyond that.
    pub(super) const fn new(
        origin: Origin,
        name: &'static str,
        wordings: &'static [&'static str],
        meaning: &'static str,
        usual_causes: &'static [UsualCause],
    ) -> Self {
        Self {
            origin,
            number: None,
            former_number: None,
            name,
            runtime_name: None,
            wordings,
            meaning,
            mistaken_for: None,
            sticky: false,
            late: false,
            wraps: false,
            follows: false,
            retired: false,
            usual_causes,
            commands: &[],
        }
    }

    /// A failure of the driver, with the runtime's name for it.
    pub(super) const fn driver(
        number: i32,
        name: &'static str,
        runtime_name: &'static str,
        wordings: &'static [&'static str],
        meaning: &'static str,
        usual_causes: &'static [UsualCause],
    ) -> Self {
        let mut failure = Self::new(Origin::Driver, name, wordings, meaning, usual_causes);
        failure.number = Some(number);
        failure.runtime_name = Some(runtime_name);
        failure
    }

    /// A failure of the driver that the runtime has no name for.
    pub(super) const fn driver_alone(
        number: i32,
        name: &'static str,
        meaning: &'static str,
        usual_causes: &'static [UsualCause],
    ) -> Self {
        Self::new(Origin::Driver, name, &[], meaning, usual_causes).numbered(number)
    }

    /// A failure that only the runtime knows.
    pub(super) const fn runtime(
        number: i32,
        name: &'static str,
        wordings: &'static [&'static str],
        meaning: &'static str,
        usual_causes: &'static [UsualCause],
    ) -> Self {
        Self::new(Origin::Runtime, name, wordings, meaning, usual_causes).numbered(number)
    }

    pub(super) const fn numbered(mut self, number: i32) -> Self {
        self.number = Some(number);
        self
    }

    pub(super) const fn formerly(mut self, number: i32) -> Self {
        self.former_number = Some(number);
        self
    }

    pub(super) const fn not(mut self, mistaken_for: &'static str) -> Self {
        self.mistaken_for = Some(mistaken_for);
        self
    }

    pub(super) const fn late(mut self) -> Self {
        self.late = true;
        self
    }

    /// Loses the context, and is noticed only later.
    pub(super) const fn fatal(mut self) -> Self {
        self.late = true;
        self.sticky = true;
        self
    }

    /// Loses the context.
    pub(super) const fn sticky(mut self) -> Self {
        self.sticky = true;
        self
    }

    pub(super) const fn wraps(mut self) -> Self {
        self.wraps = true;
        self
    }

    pub(super) const fn follows(mut self) -> Self {
        self.follows = true;
        self
    }

    pub(super) const fn retired(mut self) -> Self {
        self.retired = true;
        self
    }

    pub(super) const fn run(mut self, commands: &'static [&'static str]) -> Self {
        self.commands = commands;
        self
    }
}
