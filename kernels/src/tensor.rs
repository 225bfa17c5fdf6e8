//! Device memory with a shape and strides.

use gridguard::cuda::{Memory, MemoryMut};

use crate::element::{Element, ElementType, assert_size, to_u64};
use crate::error::KernelError;
use crate::extent::Extent;

/// A tensor that a kernel reads.
///
/// The launch checks type, shape, strides and length.
#[derive(Clone, Copy)]
pub struct Tensor<'a, T, const N: usize> {
    pub(crate) memory: &'a dyn Memory<T>,
    pub(crate) extent: Extent<N>,
}

impl<'a, T, const N: usize> Tensor<'a, T, N> {
    /// A slice or view of cudarc, contiguous in row-major order.
    pub fn new(memory: &'a impl Memory<T>, dims: [u64; N]) -> Self {
        Self::with_extent(memory, Extent::contiguous(dims))
    }

    /// With the given sizes and strides.
    pub const fn with_extent(memory: &'a impl Memory<T>, extent: Extent<N>) -> Self {
        Self { memory, extent }
    }

    /// The memory, if it is contiguous and of the shape `dims`.
    pub(crate) fn contiguous(
        self,
        name: &'static str,
        dims: [u64; N],
    ) -> Result<&'a dyn Memory<T>, KernelError> {
        check_contiguous(name, self.memory.len(), &self.extent, dims)?;
        Ok(self.memory)
    }
}

/// A tensor that a kernel writes.
///
/// The launch checks type, shape, strides and length.
pub struct TensorMut<'a, T, const N: usize> {
    pub(crate) memory: &'a mut dyn MemoryMut<T>,
    pub(crate) extent: Extent<N>,
}

impl<'a, T, const N: usize> TensorMut<'a, T, N> {
    /// A slice or view of cudarc, contiguous in row-major order.
    pub fn new(memory: &'a mut impl MemoryMut<T>, dims: [u64; N]) -> Self {
        Self::with_extent(memory, Extent::contiguous(dims))
    }

    /// With the given sizes and strides. Elements must not overlap.
    pub const fn with_extent(memory: &'a mut impl MemoryMut<T>, extent: Extent<N>) -> Self {
        Self { memory, extent }
    }

    /// The memory, if it is contiguous and of the shape `dims`.
    pub(crate) fn contiguous(
        self,
        name: &'static str,
        dims: [u64; N],
    ) -> Result<&'a mut dyn MemoryMut<T>, KernelError> {
        check_contiguous(name, self.memory.len(), &self.extent, dims)?;
        Ok(self.memory)
    }
}

/// Checks that `extent` has the shape `expected` and fits into `length` elements. A contiguous tensor must have
/// exactly this length.
pub(crate) fn check<const N: usize>(
    tensor: &'static str,
    length: usize,
    extent: &Extent<N>,
    expected: [u64; N],
) -> Result<(), KernelError> {
    check_shape(tensor, extent, expected)?;
    let (reach, given) = (extent.reach(), to_u64(length));
    if reach > given.into() || (extent.is_contiguous() && reach != given.into()) {
        let shape = expected.to_vec();
        return Err(KernelError::Length { tensor, shape, expected: reach, given });
    }
    Ok(())
}

pub(crate) fn check_shape<const N: usize>(
    tensor: &'static str,
    extent: &Extent<N>,
    expected: [u64; N],
) -> Result<(), KernelError> {
    if extent.dims == expected {
        return Ok(());
    }
    let (given, expected) = (extent.dims.to_vec(), expected.to_vec());
    Err(KernelError::Shape { tensor, given, expected })
}

fn check_contiguous<const N: usize>(
    tensor: &'static str,
    length: usize,
    extent: &Extent<N>,
    expected: [u64; N],
) -> Result<(), KernelError> {
    check(tensor, length, extent, expected)?;
    if !extent.is_contiguous() {
        let strides = extent.strides.to_vec();
        return Err(KernelError::Strides { tensor, strides, expected: "contiguous memory" });
    }
    Ok(())
}

/// Checks that `T` is the element type that the kernel was prepared for.
pub(crate) fn check_element<T: Element>(expected: ElementType) -> Result<(), KernelError> {
    const { assert_size::<T>(T::TYPE.bytes()) };
    if T::TYPE == expected {
        return Ok(());
    }
    let (given, expected) = (T::TYPE.name(), expected.name());
    Err(KernelError::TensorType { tensors: "tensors", given, expected })
}
