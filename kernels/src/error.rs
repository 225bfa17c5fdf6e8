//! What can go wrong around a kernel.

use gridguard::ComputeCapability;

use crate::compare::ComparedType;
use crate::element::ElementType;
use crate::index::IndexType;

/// Why a kernel was not run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A dimension that the kernel does not take.
    #[error("{dimension} is {given}, the kernel takes {least} to {most}")]
    Dimension {
        /// The dimension.
        dimension: &'static str,
        /// Its size.
        given: u64,
        /// The least that it takes.
        least: u64,
        /// The most that it takes.
        most: u64,
    },
    /// A device that has no instructions for what is asked.
    #[error("{what} needs compute capability {needed}, {device} has {capability}: {remedy}")]
    Unsupported {
        /// What is asked.
        what: &'static str,
        /// The least capability that has it.
        needed: ComputeCapability,
        /// The device.
        device: String,
        /// Its capability.
        capability: ComputeCapability,
        /// The way out.
        remedy: &'static str,
    },
    /// A tensor of another shape than the kernel was prepared for.
    #[error("{tensor} has shape {given:?}, the kernel was prepared for {expected:?}")]
    Shape {
        /// The tensor.
        tensor: &'static str,
        /// Its shape.
        given: Vec<u64>,
        /// The shape it must have.
        expected: Vec<u64>,
    },
    /// A tensor whose elements lie as the kernel does not take them.
    #[error("{tensor} has strides {strides:?}, the kernel takes {expected}")]
    Strides {
        /// The tensor.
        tensor: &'static str,
        /// Its strides, in elements.
        strides: Vec<u64>,
        /// What it takes.
        expected: &'static str,
    },
    /// Elements of another type than the kernel was prepared for.
    #[error("the tensors are of {given}, the kernel was prepared for {expected}")]
    ElementType {
        /// The type given.
        given: ElementType,
        /// The type it must be.
        expected: ElementType,
    },
    /// Indices of another type than the kernel was prepared for.
    #[error("the indices are of {given}, the kernel was prepared for {expected}")]
    IndexType {
        /// The type given.
        given: IndexType,
        /// The type it must be.
        expected: IndexType,
    },
    /// Elements to compare of another type than the kernel was prepared for.
    #[error("the elements to compare are {given}, the kernel was prepared for {expected}")]
    ComparedType {
        /// The type given.
        given: ComparedType,
        /// The type it must be.
        expected: ComparedType,
    },
    /// An index that names no row of its table.
    #[error("index[{position}] is {value}, the table has {rows} rows")]
    Index {
        /// Its place among the indices.
        position: u64,
        /// The index.
        value: i64,
        /// Rows of the table.
        rows: u64,
    },
    /// A shape whose elements cannot be counted in 64 bits.
    #[error("a tensor of shape {shape:?} has more elements than 64 bits count")]
    TooLarge {
        /// The shape.
        shape: Vec<u64>,
    },
    /// Memory of another length than its shape and strides say.
    #[error("{tensor} has {given} elements, shape {shape:?} has {expected}")]
    Length {
        /// The tensor.
        tensor: &'static str,
        /// The shape.
        shape: Vec<u64>,
        /// Elements of the shape, from the first to behind the last.
        expected: u128,
        /// Elements of the memory.
        given: u64,
    },
    /// A tensor whose elements would be written twice.
    #[error("{tensor} has strides {strides:?} for shape {shape:?}: some elements are the same")]
    Overlap {
        /// The tensor.
        tensor: &'static str,
        /// Its shape.
        shape: Vec<u64>,
        /// Its strides, in elements.
        strides: Vec<u64>,
    },
    /// An argument that the kernel was prepared for and did not get, or the other way round.
    #[error("{argument} was {given}, the kernel was prepared {expected} it")]
    Argument {
        /// The argument.
        argument: &'static str,
        /// `given` or `not given`.
        given: &'static str,
        /// `with` or `without`.
        expected: &'static str,
    },
    /// A factor that the kernel does not take.
    #[error("{argument} is {given}, the kernel takes {expected}")]
    Value {
        /// The argument.
        argument: &'static str,
        /// Its value.
        given: f32,
        /// What it takes.
        expected: &'static str,
    },
    /// A variant of the kernel that does not take the shape or type.
    #[error("the {variant} variant takes {takes}")]
    Variant {
        /// The variant.
        variant: &'static str,
        /// What it takes.
        takes: &'static str,
    },
    /// Launch parameters that the kernel does not take.
    #[error("{parameter} is {given}, the {variant} variant takes {expected} here")]
    LaunchParameter {
        /// The variant.
        variant: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        given: u64,
        /// What it takes.
        expected: String,
    },
    /// A launch parameter that the kernel does not know.
    #[error("{kernel} has no launch parameter {given}, it has {known}")]
    UnknownParameter {
        /// The kernel.
        kernel: &'static str,
        /// The name given.
        given: String,
        /// The names of those it has.
        known: &'static str,
    },
    /// The launch breaks rules that no split mends.
    #[error(transparent)]
    Violations(#[from] gridguard::Violations),
    /// The device code could not be compiled or loaded.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] gridguard::cuda::CudaError),
    /// A report of the device's could not be made, read or emptied.
    #[cfg(feature = "cuda")]
    #[error("a report could not be made, read or emptied: {0}")]
    Memory(cudarc::driver::DriverError),
    /// The launch failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Launch(#[from] gridguard::cuda::LaunchError),
    /// The host backend failed.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Host(#[from] gridguard::PartialRun<gridguard::HostError>),
}

#[cfg(feature = "cuda")]
impl From<cudarc::driver::DriverError> for KernelError {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Self::Memory(error)
    }
}

#[cfg(feature = "cuda")]
impl From<gridguard::cuda::LoadError> for KernelError {
    fn from(error: gridguard::cuda::LoadError) -> Self {
        Self::Cuda(error.into())
    }
}
