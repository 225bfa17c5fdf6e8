//! Device memory with a shape and strides.

use gridguard::cuda::{Memory, MemoryMut};

use crate::element::{Element, ElementType, assert_size, to_u64};
use crate::error::KernelError;

/// The sizes and strides of a tensor of `N` axes, in elements, slowest axis first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent<const N: usize> {
    /// The sizes.
    pub dims: [u64; N],
    /// The strides, in elements.
    pub strides: [u64; N],
}

impl<const N: usize> Extent<N> {
    /// Contiguous in row-major order.
    #[must_use]
    pub fn contiguous(dims: [u64; N]) -> Self {
        let mut strides = [1; N];
        let mut stride = 1_u64;
        for (place, dim) in strides.iter_mut().zip(dims).rev() {
            *place = stride;
            stride = stride.saturating_mul(dim.max(1));
        }
        Self { dims, strides }
    }

    /// With the given strides, in elements. A stride of 0 repeats the same elements.
    #[must_use]
    pub const fn strided(dims: [u64; N], strides: [u64; N]) -> Self {
        Self { dims, strides }
    }

    /// The same memory with two axes swapped; unchanged if there are no such axes.
    #[must_use]
    pub fn swap_axes(mut self, one: usize, other: usize) -> Self {
        if one < N && other < N {
            self.dims.swap(one, other);
            self.strides.swap(one, other);
        }
        self
    }

    /// Whether the elements are contiguous in row-major order. Axes of one element may have any
    /// stride.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let plain = Self::contiguous(self.dims);
        let axes = self.strides.iter().zip(plain.strides).zip(self.dims);
        self.is_empty()
            || axes.into_iter().all(|((stride, plain), dim)| dim == 1 || *stride == plain)
    }

    /// Elements from the first to the last, both included.
    #[must_use]
    pub fn reach(&self) -> u128 {
        if self.is_empty() {
            return 0;
        }
        let steps = self.dims.iter().zip(self.strides);
        let last = steps.map(|(dim, stride)| u128::from(dim - 1) * u128::from(stride));
        1 + last.fold(0_u128, u128::saturating_add)
    }

    /// Whether no two indices name the same element: each stride must step over all elements that
    /// the axes of smaller strides reach. Some layouts without overlap fail this test.
    #[must_use]
    pub fn is_injective(&self) -> bool {
        let mut axes: Vec<(u64, u64)> =
            self.strides.into_iter().zip(self.dims).filter(|(_, dim)| *dim > 1).collect();
        axes.sort_unstable();
        let mut reach = 1_u128;
        axes.iter().all(|(stride, dim)| {
            let apart = u128::from(*stride) >= reach;
            reach = reach.saturating_add(u128::from(dim - 1).saturating_mul(u128::from(*stride)));
            apart
        }) || self.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.dims.contains(&0)
    }
}

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
    #[must_use]
    pub fn new(memory: &'a impl Memory<T>, dims: [u64; N]) -> Self {
        Self::with_extent(memory, Extent::contiguous(dims))
    }

    /// With the given sizes and strides.
    #[must_use]
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
    #[must_use]
    pub fn new(memory: &'a mut impl MemoryMut<T>, dims: [u64; N]) -> Self {
        Self::with_extent(memory, Extent::contiguous(dims))
    }

    /// With the given sizes and strides, under which no two elements may overlap.
    #[must_use]
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

/// Checks that `extent` is of the shape `expected` and that `length` elements are enough; no more than
/// that, if it is contiguous.
pub(crate) fn check<const N: usize>(
    tensor: &'static str,
    length: usize,
    extent: &Extent<N>,
    expected: [u64; N],
) -> Result<(), KernelError> {
    let (shape, reach, given) = (extent.dims, extent.reach(), to_u64(length));
    if shape != expected {
        let (given, expected) = (shape.to_vec(), expected.to_vec());
        return Err(KernelError::Shape { tensor, given, expected });
    }
    if reach > given.into() || (extent.is_contiguous() && reach != given.into()) {
        let shape = shape.to_vec();
        return Err(KernelError::Length { tensor, shape, expected: reach, given });
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_strides_follow_from_the_sizes() {
        let extent = Extent::contiguous([6, 5, 16, 64]);
        assert_eq!(extent.strides, [5120, 1024, 64, 1]);
        assert!(extent.is_contiguous() && extent.is_injective());
        assert_eq!(extent.reach(), 30_720);
        assert_eq!(Extent::contiguous([0, 5]).reach(), 0);
    }

    #[test]
    fn swapped_axes_are_the_same_memory() {
        // [batch, frames, heads, head_dim] as [batch, heads, frames, head_dim].
        let extent = Extent::contiguous([6, 16, 5, 64]).swap_axes(1, 2);
        assert_eq!(extent.dims, [6, 5, 16, 64]);
        assert_eq!(extent.strides, [5120, 64, 320, 1]);
        assert!(!extent.is_contiguous() && extent.is_injective());
        assert_eq!(extent.reach(), 30_720);
        assert_eq!(extent.swap_axes(1, 9), extent);
    }

    #[test]
    fn an_axis_of_one_element_may_have_any_stride() {
        assert!(Extent::strided([1, 5, 1, 64], [7, 64, 0, 1]).is_contiguous());
        assert!(!Extent::strided([2, 5, 1, 64], [7, 64, 0, 1]).is_contiguous());
    }

    #[test]
    fn overlapping_elements_are_detected() {
        assert!(!Extent::strided([4, 64], [0, 1]).is_injective());
        assert!(!Extent::strided([4, 64], [63, 1]).is_injective());
        assert!(Extent::strided([4, 64], [64, 1]).is_injective());
        assert!(Extent::strided([u64::MAX, 2], [u64::MAX, 1]).reach() > u128::from(u64::MAX));
    }
}
