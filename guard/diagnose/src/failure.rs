//! Entries of the failure tables, and the functions that build them.

/// The reporter of a failure.
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
    /// cuSPARSE.
    Cusparse,
    /// NVML, which `nvidia-smi` uses.
    Nvml,
    /// Docker, Podman or Kubernetes.
    Container,
    /// An operator of a framework, which checks its inputs before a launch.
    Operator,
    /// compute-sanitizer, or cuda-memcheck.
    Sanitizer,
    /// The compilers of CUDA: `ptxas`, `nvcc`.
    Compiler,
    /// ROCm, whose limits differ from the limits of CUDA.
    Rocm,
    /// WebGPU, whose limits differ from the limits of CUDA.
    Webgpu,
}

impl Origin {
    pub(super) const fn is_cuda(self) -> bool {
        matches!(self, Self::Driver | Self::Runtime)
    }
}

/// A failure of the tables: its names, meaning and usual causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownFailure {
    /// Its reporter.
    pub origin: Origin,
    /// Its number, if it has one. Driver and runtime use the same number.
    pub number: Option<i32>,
    /// Its number in the runtime before CUDA 10.1, if it differs.
    pub former_number: Option<i32>,
    /// Its name in the driver, or else in the runtime or library.
    pub name: &'static str,
    /// The runtime's name for a failure of the driver.
    pub runtime_name: Option<&'static str>,
    /// Its meaning.
    pub meaning: &'static str,
    /// Another failure that it is often mistaken for, with the difference.
    pub mistaken_for: Option<&'static str>,
    /// Whether the context is lost: every later CUDA call in the process returns an error.
    pub sticky: bool,
    /// Whether an unrelated later call usually reports it, instead of the call that caused it.
    pub late: bool,
    /// Whether it only reports that another call failed. Another message names that failure.
    pub wraps: bool,
    /// Whether later calls return it after another failure has made the context unusable.
    pub follows: bool,
    /// Whether no CUDA release since 10.1 returns it.
    pub retired: bool,
    /// Commands that give more information.
    pub commands: &'static [&'static str],
    causes: [KnownCause; MAX_CAUSES],
    cause_count: usize,
    messages: [&'static str; MAX_MESSAGES],
    message_count: usize,
}

/// A usual cause and its remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownCause {
    /// The cause.
    pub what: &'static str,
    /// How to fix it.
    pub remedy: &'static str,
    /// The evidence that decides it.
    pub(super) hint: Option<Hint>,
}

/// A possible cause and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Cause {
    /// A stable id if evidence can decide the cause, for example the id of the violated rule.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub id: Option<String>,
    /// The cause.
    pub what: String,
    /// The evidence for it, if any.
    pub why_likely: Option<String>,
    /// How to fix it.
    pub remedy: String,
}

/// The kind of evidence that decides whether a known cause applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// Sizes of the launch: the rules that it violates.
    LaunchSize,
    /// Other rules that the launch may violate, which a check may be unable to exclude.
    LaunchRule,
    /// The rule about 32-bit indices, for which CUDA has no error code.
    IndexWrap,
    /// More memory is requested than is free.
    TooLittleFree,
    /// Hardly any memory is free for a library's handles and workspaces.
    LittleFree,
    /// Enough memory is free, but fragmented or reserved by an allocator.
    Fragments,
    /// Stacks and local memory of threads, which the free memory does not include.
    LocalMemory,
    /// Another process uses the memory.
    OtherProcess,
    /// More memory is requested than the device has.
    AbsurdSize,
    /// No code for the device's architecture.
    Architecture,
    /// The driver is older than the program's CUDA version.
    DriverAge,
    /// No device is visible.
    NoDevice,
    /// The ordinal is not below the number of visible devices.
    Ordinal,
    /// A launch before the call that reports the failure.
    EarlierKernel,
    /// A failed assertion of device code.
    FailedAssertion,
    /// A failed assertion about an index.
    IndexOutOfRange,
    /// A small request: the device was full before.
    SharedDevice,
    /// The failed call copies memory.
    Copy,
    /// The failed call allocates memory.
    Allocation,
    /// The failed call waits for the device.
    Synchronization,
    /// A launch whose grid can only be too small.
    EmptyBatch,
    /// An empty or too large range of Thrust.
    ManyItems,
    /// A kernel that the program compiles for some devices only.
    MissingKernel,
    /// The program compiles its kernels when it runs.
    RunTimeCompiler,
    /// Launches of known programs that exceed a limit.
    TemporalAttention,
    SortRow,
    MoeTokens,
    AttentionBatch,
    MatrixRows,
    NormalizedRows,
    ImagePlanes,
    /// A kernel sized for a device with more shared memory.
    SharedMemory,
    /// An instantiated graph that is updated with another kernel.
    GraphUpdate,
    /// A module that is loaded at the first use of its kernel.
    LazyLoading,
    /// No memory is left for a module, a context or a graph.
    ModuleMemory,
    ContextMemory,
    GraphMemory,
    /// A pool that an allocator reserves when the program starts.
    PoolMemory,
    /// Pinned memory of the host.
    HostMemory,
    /// A call that cannot be captured.
    CapturedCall,
    /// Programs with their own remedies.
    PyTorch,
    Ggml,
    /// A batch or tensor that is larger than an axis of a grid.
    LargeShape,
    /// A tensor of too many elements for TensorRT.
    TensorVolume,
    /// No libcuda was loaded.
    MissingDriver,
    /// An access that is out of bounds, or not aligned.
    OutOfBounds,
    Misaligned,
    /// More than a block of the GPU can have.
    Need,
    /// The GPU is older than the function's minimum.
    GpuAge,
    /// A convolution.
    Convolution,
}

impl Hint {
    /// The id of causes with this hint: its name in kebab case.
    pub(super) fn id(self) -> String {
        let mut id = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !id.is_empty() {
                id.push('-');
            }
            id.push(letter.to_ascii_lowercase());
        }
        id
    }
}

/// A usual cause.
pub(super) const fn cause(what: &'static str) -> KnownCause {
    KnownCause { what, remedy: "", hint: None }
}

impl KnownCause {
    pub(super) const fn fix(self, remedy: &'static str) -> Self {
        Self { remedy, ..self }
    }

    pub(super) const fn hint(self, hint: Hint) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

/// A failure that the driver and the runtime report, each under its own name.
pub(super) const fn driver(
    number: i32,
    name: &'static str,
    runtime_name: &'static str,
) -> KnownFailure {
    KnownFailure { runtime_name: Some(runtime_name), ..driver_only(number, name) }
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
    KnownFailure::new(Origin::Driver, name).numbered(number)
}

/// A failure that only the runtime reports.
pub(super) const fn runtime(number: i32, name: &'static str) -> KnownFailure {
    KnownFailure::new(Origin::Runtime, name).numbered(number)
}

impl Cause {
    pub(super) fn known(known: &KnownCause, why_likely: Option<String>) -> Self {
        let id = known.hint.map(Hint::id);
        Self { id, what: known.what.into(), why_likely, remedy: known.remedy.into() }
    }

    pub(super) fn stated(
        hint: Hint,
        what: impl Into<String>,
        why: String,
        remedy: impl Into<String>,
    ) -> Self {
        let (id, why_likely) = (Some(hint.id()), Some(why));
        Self { id, what: what.into(), why_likely, remedy: remedy.into() }
    }
}

impl KnownFailure {
    /// Its messages or parts of them, the most usual first.
    pub const fn messages(&self) -> &[&'static str] {
        self.messages.split_at(self.message_count).0
    }

    /// Its usual causes, the most likely first.
    pub fn known_causes(&self) -> impl Iterator<Item = &KnownCause> {
        self.causes.iter().take(self.cause_count)
    }

    /// An entry with origin and name. The methods below add the rest.
    pub(super) const fn new(origin: Origin, name: &'static str) -> Self {
        Self {
            origin,
            number: None,
            former_number: None,
            name,
            runtime_name: None,
            meaning: "",
            mistaken_for: None,
            sticky: false,
            late: false,
            wraps: false,
            follows: false,
            retired: false,
            commands: &[],
            causes: [cause(""); MAX_CAUSES],
            cause_count: 0,
            messages: [""; MAX_MESSAGES],
            message_count: 0,
        }
    }

    pub(super) const fn numbered(self, number: i32) -> Self {
        Self { number: Some(number), ..self }
    }

    pub(super) const fn formerly(self, number: i32) -> Self {
        Self { former_number: Some(number), ..self }
    }

    pub(super) const fn says(mut self, message: &'static str) -> Self {
        self.messages[self.message_count] = message;
        self.message_count += 1;
        self
    }

    pub(super) const fn means(self, meaning: &'static str) -> Self {
        Self { meaning, ..self }
    }

    pub(super) const fn not(self, mistaken_for: &'static str) -> Self {
        Self { mistaken_for: Some(mistaken_for), ..self }
    }

    /// Adds causes that several failures have.
    pub(super) const fn causes(mut self, shared: &[KnownCause]) -> Self {
        let mut next = 0;
        while next < shared.len() {
            self.causes[self.cause_count] = shared[next];
            self.cause_count += 1;
            next += 1;
        }
        self
    }

    /// Adds a cause. [`Self::fix`] and [`Self::hint`] complete it.
    pub(super) const fn cause(self, what: &'static str) -> Self {
        self.causes(&[cause(what)])
    }

    /// The remedy of the last cause.
    pub(super) const fn fix(mut self, remedy: &'static str) -> Self {
        self.causes[self.cause_count - 1].remedy = remedy;
        self
    }

    /// The evidence that decides whether the last cause applies.
    pub(super) const fn hint(mut self, hint: Hint) -> Self {
        self.causes[self.cause_count - 1].hint = Some(hint);
        self
    }

    pub(super) const fn run(self, commands: &'static [&'static str]) -> Self {
        Self { commands, ..self }
    }

    /// A kernel failed: a later call reports it, and so does every call after that.
    pub(super) const fn loses_context(self) -> Self {
        self.sticky().late()
    }

    pub(super) const fn sticky(self) -> Self {
        Self { sticky: true, ..self }
    }

    pub(super) const fn late(self) -> Self {
        Self { late: true, ..self }
    }

    pub(super) const fn wraps(self) -> Self {
        Self { wraps: true, ..self }
    }

    pub(super) const fn follows(self) -> Self {
        Self { follows: true, ..self }
    }

    pub(super) const fn retired(self) -> Self {
        Self { retired: true, ..self }
    }
}

/// Entries with more causes or messages do not compile.
const MAX_CAUSES: usize = 6;
const MAX_MESSAGES: usize = 6;
