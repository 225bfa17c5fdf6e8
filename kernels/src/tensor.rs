//! Memory on the device together with its shape.

use cudarc::driver::DeviceSlice;

use crate::element::{Element, ElementType};
use crate::error::KernelError;

/// Where the elements of a tensor of `N` axes lie: sizes and strides in elements, slowest axis first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent<const N: usize> {
    dims: [u64; N],
    strides: [u64; N],
}

impl<const N: usize> Extent<N> {
    /// Without gaps, the last axis fastest.
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

    /// With strides of the caller's, in elements. A stride of 0 repeats the same elements.
    #[must_use]
    pub const fn strided(dims: [u64; N], strides: [u64; N]) -> Self {
        Self { dims, strides }
    }

    /// The sizes.
    #[must_use]
    pub const fn dims(&self) -> [u64; N] {
        self.dims
    }

    /// The strides, in elements.
    #[must_use]
    pub const fn strides(&self) -> [u64; N] {
        self.strides
    }

    /// The same memory with two axes exchanged; as it is where there are no such axes.
    #[must_use]
    pub fn swap_axes(mut self, one: usize, other: usize) -> Self {
        if one < N && other < N {
            self.dims.swap(one, other);
            self.strides.swap(one, other);
        }
        self
    }

    /// Whether the elements lie without gaps, the last axis fastest. Axes of one element may have
    /// any stride.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let plain = Self::contiguous(self.dims);
        let axes = self.strides.iter().zip(plain.strides).zip(self.dims);
        self.is_empty()
            || axes.into_iter().all(|((stride, plain), dim)| dim == 1 || *stride == plain)
    }

    /// Elements from the first to behind the last.
    #[must_use]
    pub fn reach(&self) -> u128 {
        if self.is_empty() {
            return 0;
        }
        let steps = self.dims.iter().zip(self.strides);
        let last = steps.map(|(dim, stride)| u128::from(dim - 1) * u128::from(stride));
        1 + last.fold(0_u128, u128::saturating_add)
    }

    /// Whether no two indices can name the same element: each stride passes over all that the
    /// smaller ones reach.
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

/// Memory that a kernel reads.
///
/// `S` is a slice or a view of cudarc's. Nothing is checked before the launch, which knows what it
/// expects.
#[derive(Debug)]
pub struct Tensor<'a, S, const N: usize> {
    pub(crate) memory: &'a S,
    pub(crate) extent: Extent<N>,
}

impl<S, const N: usize> Clone for Tensor<'_, S, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, const N: usize> Copy for Tensor<'_, S, N> {}

impl<'a, S, const N: usize> Tensor<'a, S, N> {
    /// Contiguous, the last axis fastest.
    #[must_use]
    pub fn new(memory: &'a S, dims: [u64; N]) -> Self {
        Self::with_extent(memory, Extent::contiguous(dims))
    }

    /// With strides of the caller's.
    #[must_use]
    pub const fn with_extent(memory: &'a S, extent: Extent<N>) -> Self {
        Self { memory, extent }
    }
}

/// Memory that a kernel writes.
///
/// `S` is a slice or a view of cudarc's. Nothing is checked before the launch, which knows what it
/// expects.
#[derive(Debug)]
pub struct TensorMut<'a, S, const N: usize> {
    pub(crate) memory: &'a mut S,
    pub(crate) extent: Extent<N>,
}

impl<'a, S, const N: usize> TensorMut<'a, S, N> {
    /// Contiguous, the last axis fastest.
    #[must_use]
    pub fn new(memory: &'a mut S, dims: [u64; N]) -> Self {
        Self::with_extent(memory, Extent::contiguous(dims))
    }

    /// With strides of the caller's, under which no two elements may be the same.
    #[must_use]
    pub const fn with_extent(memory: &'a mut S, extent: Extent<N>) -> Self {
        Self { memory, extent }
    }
}

/// Checks that `memory` holds what `extent` says, and `extent` is of the shape `expected`.
pub(crate) fn check<T, S: DeviceSlice<T>, const N: usize>(
    tensor: &'static str,
    memory: &S,
    extent: &Extent<N>,
    expected: [u64; N],
) -> Result<(), KernelError> {
    if extent.dims() != expected {
        let (given, expected) = (extent.dims().to_vec(), expected.to_vec());
        return Err(KernelError::Shape { tensor, given, expected });
    }
    let given = u64::try_from(memory.len()).unwrap_or(u64::MAX);
    if extent.reach() > u128::from(given)
        || (extent.is_contiguous() && extent.reach() != given.into())
    {
        let shape = extent.dims().to_vec();
        return Err(KernelError::Length { tensor, shape, expected: extent.reach(), given });
    }
    Ok(())
}

/// As [`check`], for memory without gaps.
pub(crate) fn check_contiguous<T, S: DeviceSlice<T>, const N: usize>(
    tensor: &'static str,
    memory: &S,
    extent: &Extent<N>,
    expected: [u64; N],
) -> Result<(), KernelError> {
    check(tensor, memory, extent, expected)?;
    if !extent.is_contiguous() {
        let strides = extent.strides().to_vec();
        return Err(KernelError::Strides { tensor, strides, expected: "contiguous memory" });
    }
    Ok(())
}

/// Checks that the elements are of the type that the kernel was made for.
pub(crate) fn check_element<T: Element>(expected: ElementType) -> Result<(), KernelError> {
    if T::TYPE == expected {
        return Ok(());
    }
    Err(KernelError::ElementType { given: T::TYPE, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_strides_follow_from_the_sizes() {
        let extent = Extent::contiguous([6, 5, 16, 64]);
        assert_eq!(extent.strides(), [5120, 1024, 64, 1]);
        assert!(extent.is_contiguous() && extent.is_injective());
        assert_eq!(extent.reach(), 30_720);
        assert_eq!(Extent::contiguous([0, 5]).reach(), 0);
    }

    #[test]
    fn exchanged_axes_are_the_same_memory() {
        // [batch, frames, heads, head_dim] as [batch, heads, frames, head_dim].
        let extent = Extent::contiguous([6, 16, 5, 64]).swap_axes(1, 2);
        assert_eq!(extent.dims(), [6, 5, 16, 64]);
        assert_eq!(extent.strides(), [5120, 64, 320, 1]);
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
    fn elements_named_twice_are_seen() {
        assert!(!Extent::strided([4, 64], [0, 1]).is_injective());
        assert!(!Extent::strided([4, 64], [63, 1]).is_injective());
        assert!(Extent::strided([4, 64], [64, 1]).is_injective());
        assert!(Extent::strided([u64::MAX, 2], [u64::MAX, 1]).reach() > u128::from(u64::MAX));
    }
}
