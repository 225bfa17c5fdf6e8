//! Why a kernel was not run.

use gridguard::{ComputeCapability, DeviceLimits};

/// Why a kernel was not run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A dimension is outside the range that the kernel supports.
    #[error("{dimension} is {given}, the kernel takes {least} to {most}")]
    Dimension {
        /// The dimension.
        dimension: &'static str,
        /// Its size.
        given: u64,
        /// The smallest supported size.
        least: u64,
        /// The largest supported size.
        most: u64,
    },
    /// A dimension is not a multiple of a required number.
    #[error("{dimension} is {given}, not a multiple of {of}")]
    NotMultiple {
        /// The dimension.
        dimension: &'static str,
        /// Its size.
        given: u64,
        /// The number that must divide it.
        of: String,
    },
    /// The device lacks the instructions.
    #[error("{what} needs compute capability {needed}, {device} has {capability}: {remedy}")]
    Unsupported {
        /// The instructions.
        what: &'static str,
        /// The lowest compute capability that has them.
        needed: ComputeCapability,
        /// The device.
        device: String,
        /// Its compute capability.
        capability: ComputeCapability,
        /// What to use instead.
        remedy: &'static str,
    },
    /// A tensor has another shape than the kernel was prepared for.
    #[error("{tensor} has shape {given:?}, the kernel was prepared for {expected:?}")]
    Shape {
        /// The tensor.
        tensor: &'static str,
        /// Its shape.
        given: Vec<u64>,
        /// The shape that the kernel was prepared for.
        expected: Vec<u64>,
    },
    /// A tensor has strides that the kernel does not support.
    #[error("{tensor} has strides {strides:?}, the kernel takes {expected}")]
    Strides {
        /// The tensor.
        tensor: &'static str,
        /// Its strides, in elements.
        strides: Vec<u64>,
        /// What the kernel supports.
        expected: &'static str,
    },
    /// Tensors have another type than the kernel was prepared for.
    #[error("the {tensors} are {given}, the kernel was prepared for {expected}")]
    TensorType {
        /// Which tensors: `tensors`, `indices` or `elements to compare`.
        tensors: &'static str,
        /// Their type.
        given: &'static str,
        /// The type that the kernel was prepared for.
        expected: &'static str,
    },
    /// An index is outside the table.
    #[error("index[{position}] is {value}, the table has {rows} rows")]
    Index {
        /// Its position among the indices.
        position: u64,
        /// The index.
        value: i64,
        /// Rows of the table.
        rows: u64,
    },
    /// The number of bytes of a tensor does not fit into 64 bits.
    #[error("a tensor of shape {shape:?} has more bytes than 64 bits can count")]
    TooLarge {
        /// The shape.
        shape: Vec<u64>,
    },
    /// The memory has another length than shape and strides require.
    #[error("{tensor} has {given} elements, shape {shape:?} has {expected}")]
    Length {
        /// The tensor.
        tensor: &'static str,
        /// The shape.
        shape: Vec<u64>,
        /// Elements from the first to the last of the shape, both included.
        expected: u128,
        /// Elements of the memory.
        given: u64,
    },
    /// Two indices of an output tensor name the same element.
    #[error("{tensor} has strides {strides:?} for shape {shape:?}: some elements overlap")]
    Overlap {
        /// The tensor.
        tensor: &'static str,
        /// Its shape.
        shape: Vec<u64>,
        /// Its strides, in elements.
        strides: Vec<u64>,
    },
    /// An optional argument is missing, or was given to a kernel prepared without it.
    #[error("{argument} was {given}, the kernel was prepared {expected} it")]
    Argument {
        /// The argument.
        argument: &'static str,
        /// `given` or `not given`.
        given: &'static str,
        /// `with` or `without`.
        expected: &'static str,
    },
    /// A scalar argument is outside the range that the kernel supports.
    #[error("{argument} is {given}, the kernel takes {expected}")]
    Value {
        /// The argument.
        argument: &'static str,
        /// Its value.
        given: f32,
        /// The supported values.
        expected: &'static str,
    },
    /// The variant of the kernel does not support the shape or type.
    #[error("the {variant} variant takes {takes}")]
    Variant {
        /// The variant.
        variant: &'static str,
        /// What it supports.
        takes: &'static str,
    },
    /// The variant of the kernel does not support a launch parameter's value.
    #[error("{parameter} is {given}, the {variant} variant takes {expected} here")]
    LaunchParameter {
        /// The variant.
        variant: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        given: u64,
        /// The supported values.
        expected: String,
    },
    /// The kernel has no launch parameter of this name.
    #[error("{kernel} has no launch parameter {given}, it has {known}")]
    UnknownParameter {
        /// The kernel.
        kernel: &'static str,
        /// The name given.
        given: String,
        /// The names of its launch parameters.
        known: String,
    },
    /// The launch and every split of it violate limits of the device or kernel.
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
