//! Kernel signatures: the parameters that a kernel declares, and whether arguments match them.

use crate::plan::slot::Slot;

/// A parameter of a kernel, as its source declares it.
///
/// ```
/// use gridguard::Parameter;
/// // __global__ void scale(float *x, float by, unsigned n)
/// const SCALE: [Parameter; 3] = [Parameter::Memory, Parameter::of::<f32>(), Parameter::of::<u32>()];
/// assert_eq!(SCALE[1].bytes(), 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Parameter {
    /// A pointer to device memory. Accepts slices and views, but no numbers.
    Memory,
    /// As [`Self::Memory`], aligned for kernels that load several elements at once: a slice or a chunk
    /// that is not aligned is rejected.
    AlignedMemory {
        /// The alignment in bytes, a power of two. Zero counts as one.
        bytes: u64,
    },
    /// A value.
    Value {
        /// Its size in bytes.
        bytes: usize,
    },
}

impl Parameter {
    /// A parameter passed by value, of the size of `T`.
    pub const fn of<T>() -> Self {
        Self::Value { bytes: size_of::<T>() }
    }

    /// Its size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Memory | Self::AlignedMemory { .. } => size_of::<u64>(),
            Self::Value { bytes } => bytes,
        }
    }

    pub(crate) const fn takes(self, slot: &Slot<'_>) -> bool {
        !matches!(self, Self::Value { .. }) == slot.is_memory()
    }

    /// The alignment that the parameter requires and `slot` lacks, if any.
    pub(crate) const fn missed_alignment(self, slot: &Slot<'_>) -> Option<u64> {
        let Self::AlignedMemory { bytes } = self else {
            return None;
        };
        let bytes = if bytes == 0 { 1 } else { bytes };
        let aligned = match *slot {
            Slot::Address(address) => address.is_multiple_of(bytes),
            Slot::Items { base, stride_bytes, .. } => {
                base.is_multiple_of(bytes) && stride_bytes.is_multiple_of(bytes)
            }
            _ => true,
        };
        if aligned { None } else { Some(bytes) }
    }
}

/// What is known about a kernel's parameters.
#[derive(Clone, Debug)]
pub(crate) enum Signature {
    /// Kinds and sizes, as declared when the kernel was loaded.
    Declared(Vec<Parameter>),
    /// Sizes, as the driver reports them.
    Sizes(Vec<usize>),
    /// Nothing, with a driver before CUDA 12.4.
    Unknown,
}

impl Signature {
    /// The number of parameters, where it is known.
    pub(crate) const fn len(&self) -> Option<usize> {
        match self {
            Self::Declared(parameters) => Some(parameters.len()),
            Self::Sizes(sizes) => Some(sizes.len()),
            Self::Unknown => None,
        }
    }

    /// The size of parameter `index`, where it is known.
    pub(crate) fn bytes_of(&self, index: usize) -> Option<usize> {
        match self {
            Self::Declared(parameters) => parameters.get(index).map(|one| one.bytes()),
            Self::Sizes(sizes) => sizes.get(index).copied(),
            Self::Unknown => None,
        }
    }
}
