//! Axes, and three-dimensional sizes of grids, blocks and clusters.

use derive_more::{Display, From, Into};

/// An axis of a grid, a block or a cluster.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Axis {
    /// The fastest axis; a grid may have 2^31 - 1 blocks along it.
    X,
    /// A grid may have 65,535 blocks along it.
    Y,
    /// A grid may have 65,535 blocks along it, a block 64 threads.
    Z,
}

impl Axis {
    /// All axes, in order.
    pub const ALL: [Self; 3] = [Self::X, Self::Y, Self::Z];

    /// The axis's name in CUDA: `x`, `y` or `z`.
    pub const fn letter(self) -> &'static str {
        match self {
            Self::X => "x",
            Self::Y => "y",
            Self::Z => "z",
        }
    }
}

/// A three-dimensional size in u64, so that sizes beyond 32 bits are reported and not truncated. Validated
/// sizes fit the 32 bits that the driver takes.
#[derive(Clone, Copy, Debug, Display, From, Into, PartialEq, Eq, Hash)]
#[from((u64, u64, u64), (u32, u32, u32))]
#[display("{x} x {y} x {z}")]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "(u64, u64, u64)", into = "(u64, u64, u64)"))]
pub struct Dim3 {
    /// Size along x.
    pub x: u64,
    /// Size along y.
    pub y: u64,
    /// Size along z.
    pub z: u64,
}

impl Dim3 {
    /// One along every axis.
    pub const ONE: Self = Self::new(1, 1, 1);

    /// A size of `x`, `y`, `z`.
    pub const fn new(x: u64, y: u64, z: u64) -> Self {
        Self { x, y, z }
    }

    /// The size along `axis`.
    pub const fn along(self, axis: Axis) -> u64 {
        match axis {
            Axis::X => self.x,
            Axis::Y => self.y,
            Axis::Z => self.z,
        }
    }

    /// The same size with `extent` along `axis`.
    #[must_use]
    pub const fn with(mut self, axis: Axis, extent: u64) -> Self {
        match axis {
            Axis::X => self.x = extent,
            Axis::Y => self.y = extent,
            Axis::Z => self.z = extent,
        }
        self
    }

    /// The product of the three sizes; `u128::MAX` if it does not fit.
    ///
    /// ```
    /// use gridguard::Dim3;
    /// assert_eq!(Dim3::new(65_537, 65_537, 1).volume(), 4_295_098_369);
    /// assert_eq!(Dim3::new(u64::MAX, u64::MAX, u64::MAX).volume(), u128::MAX);
    /// ```
    pub fn volume(self) -> u128 {
        let [x, y, z] = [self.x, self.y, self.z].map(u128::from);
        // The product of two u64 fits a u128; only the third factor can overflow it.
        (x * y).saturating_mul(z)
    }

    /// The product as Triton's launchers compute it, in signed 32 bits that wrap; they skip a launch unless it is positive.
    /// `None` if they take no such grid, since an axis is 0 or beyond 2^31 - 1.
    ///
    /// ```
    /// use gridguard::Dim3;
    /// assert_eq!(Dim3::new(65_536, 32_768, 1).wrapped_volume(), Some(i32::MIN));
    /// assert_eq!(Dim3::new(1 << 31, 1, 1).wrapped_volume(), None);
    /// ```
    pub fn wrapped_volume(self) -> Option<i32> {
        let axes = [self.x, self.y, self.z].into_iter();
        axes.map(|size| i32::try_from(size).ok().filter(|size| *size > 0))
            .try_fold(1, |product: i32, size| Some(product.wrapping_mul(size?)))
    }

    /// The size in 32 bits, if each axis fits.
    pub(crate) fn narrow(self) -> Option<[u32; 3]> {
        let x = u32::try_from(self.x).ok()?;
        let y = u32::try_from(self.y).ok()?;
        let z = u32::try_from(self.z).ok()?;
        Some([x, y, z])
    }
}

impl From<[u32; 3]> for Dim3 {
    fn from([x, y, z]: [u32; 3]) -> Self {
        (x, y, z).into()
    }
}

/// A number, as far as 64 bits go.
pub(crate) fn saturated(number: impl TryInto<u64>) -> u64 {
    number.try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_past_u128_saturates_and_does_not_wrap() {
        assert_eq!(Dim3::new(u64::MAX, 2, 1).volume(), u128::from(u64::MAX) * 2);
        assert_eq!(Dim3::new(u64::MAX, u64::MAX, 3).volume(), u128::MAX);
        assert_eq!(Dim3::new(u64::MAX, u64::MAX, 0).volume(), 0);
    }

    #[test]
    fn sizes_beyond_32_bits_are_not_narrowed() {
        assert_eq!(Dim3::new(4_294_967_301, 1, 1).narrow(), None);
        assert_eq!(Dim3::new(4_294_967_295, 1, 1).narrow(), Some([u32::MAX, 1, 1]));
    }
}
