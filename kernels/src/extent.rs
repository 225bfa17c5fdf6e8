//! Sizes and strides.

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
    pub fn is_contiguous(&self) -> bool {
        let plain = Self::contiguous(self.dims);
        let axes = self.strides.iter().zip(plain.strides).zip(self.dims);
        self.is_empty()
            || axes.into_iter().all(|((stride, plain), dim)| dim == 1 || *stride == plain)
    }

    /// Elements from the first to the last, both included; saturated.
    pub fn reach(&self) -> u128 {
        if self.is_empty() {
            return 0;
        }
        let steps = self.dims.iter().zip(self.strides);
        let last = steps.map(|(dim, stride)| u128::from(dim - 1) * u128::from(stride));
        last.fold(1, u128::saturating_add)
    }

    /// Whether no two indices name the same element: each stride must step over all elements that
    /// the axes of smaller strides reach. Some layouts without overlap fail this test.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn is_injective(&self) -> bool {
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

    #[test]
    fn the_reach_of_the_largest_strides_is_saturated() {
        assert_eq!(Extent::strided([u64::MAX; 4], [u64::MAX; 4]).reach(), u128::MAX);
    }
}
