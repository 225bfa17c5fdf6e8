//! Why a kernel was not run.

use gridguard::{ComputeCapability, DeviceLimits};

/// Why a kernel was not run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum KernelError {
    /// A dimension is outside the range that the kernel supports.
    #[error("{dimension} is {given}, the kernel takes {}", range(*least, *most))]
    Dimension { dimension: &'static str, given: u64, least: u64, most: u64 },
    /// A dimension is not a multiple of a required number.
    #[error("{dimension} is {given}, not a multiple of {of}")]
    NotMultiple { dimension: &'static str, given: u64, of: String },
    /// The device lacks the instructions.
    #[error("{what} needs compute capability {needed}, {device} has {capability}: {remedy}")]
    Unsupported {
        what: &'static str,
        needed: ComputeCapability,
        device: String,
        capability: ComputeCapability,
        remedy: &'static str,
    },
    /// A tensor has another shape than the kernel was prepared for.
    #[error("{tensor} has shape {given:?}, the kernel was prepared for {expected:?}")]
    Shape { tensor: &'static str, given: Vec<u64>, expected: Vec<u64> },
    /// A tensor has strides that the kernel does not support.
    #[error("{tensor} has strides {strides:?}, the kernel takes {expected}")]
    Strides { tensor: &'static str, strides: Vec<u64>, expected: &'static str },
    /// Tensors have another type than the kernel was prepared for.
    #[error("the {tensors} are {given}, the kernel was prepared for {expected}")]
    TensorType { tensors: &'static str, given: &'static str, expected: &'static str },
    /// The number of bytes of a tensor does not fit into 64 bits.
    #[error("a tensor of shape {shape:?} has more bytes than 64 bits can count")]
    TooLarge { shape: Vec<u64> },
    /// The memory has another length than shape and strides require.
    #[error("{tensor} has {given} elements, shape {shape:?} has {expected}")]
    Length { tensor: &'static str, shape: Vec<u64>, expected: u128, given: u64 },
    /// Two indices of an output tensor name the same element.
    #[error("{tensor} has strides {strides:?} for shape {shape:?}: some elements overlap")]
    Overlap { tensor: &'static str, shape: Vec<u64>, strides: Vec<u64> },
    /// An optional argument is missing, or was given to a kernel prepared without it.
    #[error("{argument} was {given}, the kernel was prepared {expected} it")]
    Argument { argument: &'static str, given: &'static str, expected: &'static str },
    /// A scalar argument is outside the range that the kernel supports.
    #[error("{argument} is {given}, the kernel takes {expected}")]
    Value { argument: &'static str, given: f32, expected: &'static str },
    /// The variant of the kernel does not support the shape or type.
    #[error("the {variant} variant takes {takes}")]
    Variant { variant: &'static str, takes: &'static str },
    /// The variant of the kernel does not support a launch parameter's value.
    #[error("{parameter} is {given}, the {variant} variant takes {expected} here")]
    LaunchParameter { variant: &'static str, parameter: &'static str, given: u64, expected: String },
    /// The kernel has no launch parameter of this name.
    #[error("{kernel} has no launch parameter {given}, it has {known}")]
    UnknownParameter { kernel: &'static str, given: String, known: String },
    /// The launch violates limits of the device or kernel, and so does every split.
    #[error(transparent)]
    Violations(#[from] gridguard::Violations),
    /// The device code could not be compiled or loaded.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] gridguard::cuda::CudaError),
    /// Device memory that this crate allocates, for example an index report, could not be used.
    #[cfg(feature = "cuda")]
    #[error("device memory could not be allocated, copied or reset: {0}")]
    Memory(#[from] cudarc::driver::DriverError),
    /// The launch failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Launch(#[from] gridguard::cuda::LaunchError),
    /// The host backend failed.
    #[error(transparent)]
    Host(#[from] gridguard::PartialRun<gridguard::HostError>),
}

impl KernelError {
    /// The error of a device that lacks the instructions `what`.
    pub(crate) fn unsupported(
        what: &'static str,
        needed: ComputeCapability,
        device: &DeviceLimits,
        remedy: &'static str,
    ) -> Self {
        let (capability, device) = (device.compute_capability, device.name.clone());
        Self::Unsupported { what, needed, device, capability, remedy }
    }
}

/// `0 or 1`, `24`, `1 to 512`: what a kernel takes.
pub(crate) fn range(least: u64, most: u64) -> String {
    match (least, most) {
        (0, 1) => "0 or 1".into(),
        _ if least == most => most.to_string(),
        _ => format!("{least} to {most}"),
    }
}
