//! An entry of the failure tables, and how the tables build it.

use super::context::ContextState;

/// Who reports a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Origin {
    /// The CUDA driver, and the runtime under its own name for the same failure.
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
    /// NVML, which `nvidia-smi` uses.
    Nvml,
    /// Docker, Podman or Kubernetes.
    Container,
}

/// A failure of the tables: its names, what it means and what usually causes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownFailure {
    /// Who reports it.
    pub origin: Origin,
    /// Its number, where it has one; driver and runtime use the same.
    pub number: Option<i32>,
    /// Its number in the runtime before CUDA 10.1, where that differs.
    pub former_number: Option<i32>,
    /// Its name; the driver's where the driver has one.
    pub name: &'static str,
    /// The runtime's name for a failure of the driver.
    pub runtime_name: Option<&'static str>,
    /// The messages it is reported with, the most usual first; a part of a message is enough.
    pub messages: &'static [&'static str],
    /// What it means.
    pub meaning: &'static str,
    /// What it is often mistaken for, and why it is not that.
    pub mistaken_for: Option<&'static str>,
    /// Whether the context is lost: every later CUDA call in the process returns an error.
    pub sticky: bool,
    /// Whether an unrelated later call usually reports it, not the one that caused it.
    pub late: bool,
    /// Whether it only says that a call it depends on failed; another message names that failure.
    pub wraps: bool,
    /// Whether later calls return it once another failure has cost them the context.
    pub follows: bool,
    /// Whether no CUDA release since 10.1 returns it.
    pub retired: bool,
    /// What usually causes it, the likeliest first.
    pub known_causes: &'static [KnownCause],
    /// Commands that reveal more.
    pub commands: &'static [&'static str],
}

/// A usual cause and its remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownCause {
    /// The cause.
    pub what: &'static str,
    /// How to fix it.
    pub remedy: &'static str,
    /// The evidence that speaks for it or against it.
    pub(super) hint: Option<Hint>,
}

/// Which evidence decides whether a known cause applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// Sizes of the launch: the rules that it violates.
    Sizes,
    /// Other rules that the launch may violate; a check may not know enough to exclude them.
    Rules,
    /// More memory is requested than is free.
    TooLittleFree,
    /// Hardly any memory is free for what a library sets up.
    LittleFree,
    /// Enough memory is free, but fragmented or reserved by an allocator.
    Fragments,
    /// Stacks and local memory of threads, which do not show in the free memory.
    LocalMemory,
    /// Another process uses the memory.
    OtherProcess,
    /// More memory is requested than the device has.
    AbsurdSize,
    /// No code for the device's architecture.
    Architecture,
    /// The driver is older than what the program was built with.
    DriverAge,
    /// No device is visible.
    NoDevice,
    /// The ordinal is not below the number of visible devices.
    Ordinal,
    /// A launch before the call that reports the failure.
    EarlierLaunch,
    /// A failed assertion of device code.
    Assertion,
}

/// A usual cause that no evidence decides.
pub(super) const fn cause(what: &'static str, remedy: &'static str) -> KnownCause {
    KnownCause { what, remedy, hint: None }
}

/// A usual cause that evidence may decide.
pub(super) const fn hinted(hint: Hint, what: &'static str, remedy: &'static str) -> KnownCause {
    KnownCause { what, remedy, hint: Some(hint) }
}

/// A failure that the driver and the runtime report, each under its own name.
pub(super) const fn driver(
    number: i32,
    name: &'static str,
    runtime_name: &'static str,
) -> KnownFailure {
    let mut failure = driver_only(number, name);
    failure.runtime_name = Some(runtime_name);
    failure
}

/// As [`driver`], of a failure that the runtime before CUDA 10.1 returned as `former`.
pub(super) const fn renumbered(
    former: i32,
    number: i32,
    name: &'static str,
    runtime_name: &'static str,
) -> KnownFailure {
    driver(number, name, runtime_name).formerly(former)
}

/// A failure that only the driver reports.
pub(super) const fn driver_only(number: i32, name: &'static str) -> KnownFailure {
    let mut failure = KnownFailure::new(Origin::Driver, name).numbered(number);
    failure.sticky = matches!(ContextState::after(number), ContextState::Lost);
    failure.late = failure.sticky;
    failure
}

/// A failure that only the runtime reports.
pub(super) const fn runtime(number: i32, name: &'static str) -> KnownFailure {
    KnownFailure::new(Origin::Runtime, name).numbered(number)
}

impl KnownFailure {
    /// An entry; the methods below add everything but origin and name.
    pub(super) const fn new(origin: Origin, name: &'static str) -> Self {
        Self {
            origin,
            number: None,
            former_number: None,
            name,
            runtime_name: None,
            messages: &[],
            meaning: "",
            mistaken_for: None,
            sticky: false,
            late: false,
            wraps: false,
            follows: false,
            retired: false,
            known_causes: &[],
            commands: &[],
        }
    }

    pub(super) const fn numbered(mut self, number: i32) -> Self {
        self.number = Some(number);
        self
    }

    pub(super) const fn formerly(mut self, number: i32) -> Self {
        self.former_number = Some(number);
        self
    }

    pub(super) const fn says(mut self, messages: &'static [&'static str]) -> Self {
        self.messages = messages;
        self
    }

    pub(super) const fn means(mut self, meaning: &'static str) -> Self {
        self.meaning = meaning;
        self
    }

    pub(super) const fn not(mut self, mistaken_for: &'static str) -> Self {
        self.mistaken_for = Some(mistaken_for);
        self
    }

    pub(super) const fn causes(mut self, causes: &'static [KnownCause]) -> Self {
        self.known_causes = causes;
        self
    }

    pub(super) const fn run(mut self, commands: &'static [&'static str]) -> Self {
        self.commands = commands;
        self
    }

    /// For failures of other origins than CUDA; theirs follow from [`ContextState`].
    pub(super) const fn sticky(mut self) -> Self {
        self.sticky = true;
        self
    }

    pub(super) const fn late(mut self) -> Self {
        self.late = true;
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
}
