//! Grids and blocks beyond which a kernel's 32-bit indices wrap.

use crate::dim::{Axis, Dim3};

/// The largest launch before a 32-bit index of a kernel wraps, whatever the kernel's parameters are: a sum of products
/// of grid and block sizes, and the limit of this sum. The sum never falls as a size grows.
///
/// With the feature `ptx`, kernels that are loaded from PTX have these limits.
///
/// ```
/// use gridguard::{Axis, DeviceLimits, Dim3, IndexLimit, IndexTerm, KernelLimits, LaunchLimits};
/// use gridguard::{LaunchRequest, validate};
///
/// // blockIdx.y * 65536: at most gridDim.y * 65536 - 65536.
/// let by_row = IndexTerm { factor: 65_536, grid: [0, 1, 0], block: [0; 3] };
/// let constant = IndexTerm { factor: -65_536, grid: [0; 3], block: [0; 3] };
/// let index = IndexLimit { terms: vec![by_row, constant], most: 2_147_483_647 };
/// let kernel = KernelLimits { index: vec![index], ..KernelLimits::unknown("rows") };
/// let limits = LaunchLimits::new(DeviceLimits::any_device(), kernel);
/// let rows = |rows| LaunchRequest::new(Dim3::new(1, rows, 1), Dim3::new(32, 1, 1));
/// assert!(validate(&rows(32_768), &limits).is_ok());
/// let violations = validate(&rows(32_769), &limits).expect_err("it wraps");
/// assert!(violations.to_string().starts_with("a 32-bit index reaches 2147483648, the limit is 2147483647"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct IndexLimit {
    /// The sum.
    pub terms: Vec<IndexTerm>,
    /// The largest value of the sum without a wrap.
    pub most: u64,
}

/// A factor times powers of sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct IndexTerm {
    /// The factor.
    pub factor: i64,
    /// The exponents of the grid's blocks along x, y and z.
    #[cfg_attr(feature = "serde", serde(default))]
    pub grid: [u8; 3],
    /// The exponents of the block's threads along x, y and z.
    #[cfg_attr(feature = "serde", serde(default))]
    pub block: [u8; 3],
}

impl IndexLimit {
    /// The axis with the most blocks of all axes that the index depends on, and the largest index. `None` if the index
    /// stays within the limit.
    pub(crate) fn exceeded(&self, grid: Dim3, block: Dim3) -> Option<(Axis, u128)> {
        let reach = self.reach(grid, block);
        if reach <= self.most.into() {
            return None;
        }
        let axes = Axis::ALL.into_iter().filter(|axis| self.depends_on(*axis));
        let axis = axes.max_by_key(|axis| grid.along(*axis))?;
        Some((axis, u128::try_from(reach).unwrap_or(0)))
    }

    /// The most blocks along `axis` without a wrap, up to the blocks of `grid`.
    pub fn most_blocks(&self, axis: Axis, grid: Dim3, block: Dim3) -> u64 {
        self.largest(grid.along(axis), |blocks| (grid.with(axis, blocks), block))
    }

    /// A grid of at most `most` whose index stays within the limit, with any block up to `block`.
    pub(crate) fn safe_grid(&self, most: Dim3, block: Dim3) -> Dim3 {
        let of_side = |side: u64| {
            let on_axis = |grid: Dim3, axis| match self.depends_on(axis) {
                true => grid.with(axis, side.min(grid.along(axis))),
                false => grid,
            };
            Axis::ALL.into_iter().fold(most, on_axis)
        };
        of_side(self.largest(u32::MAX.into(), |side| (of_side(side), block)))
    }

    /// The largest number up to `most` whose grid and block are within the limit; 0 if there is none.
    fn largest(&self, most: u64, sizes: impl Fn(u64) -> (Dim3, Dim3)) -> u64 {
        let fits = |number| {
            let (grid, block) = sizes(number);
            self.reach(grid, block) <= self.most.into()
        };
        if fits(most) {
            return most;
        }
        let (mut least, mut most) = (0, most);
        while most.saturating_sub(least) > 1 {
            let middle = least.midpoint(most);
            if fits(middle) { least = middle } else { most = middle }
        }
        least
    }

    fn reach(&self, grid: Dim3, block: Dim3) -> i128 {
        let sizes = [grid, block].map(|dim| [dim.x, dim.y, dim.z]);
        self.terms.iter().fold(0, |sum: i128, term| {
            let exponents = [term.grid, term.block];
            let powers = sizes.as_flattened().iter().zip(exponents.as_flattened());
            let product = powers.fold(i128::from(term.factor), |product, (size, exponent)| {
                product.saturating_mul(i128::from(*size).saturating_pow((*exponent).into()))
            });
            sum.saturating_add(product)
        })
    }

    /// Whether the index depends on the blocks along `axis`.
    pub fn depends_on(&self, axis: Axis) -> bool {
        let on = |exponents: [u8; 3]| Axis::ALL.into_iter().zip(exponents);
        let mut all = self.terms.iter().flat_map(|term| on(term.grid));
        all.any(|(one, exponent)| one == axis && exponent > 0)
    }
}

#[cfg(feature = "ptx")]
impl From<gridguard_index::SizeLimit> for IndexLimit {
    fn from(limit: gridguard_index::SizeLimit) -> Self {
        let term = |term: gridguard_index::SizeTerm| {
            let gridguard_index::SizeTerm { factor, grid, block } = term;
            IndexTerm { factor, grid, block }
        };
        Self { terms: limit.terms.into_iter().map(term).collect(), most: limit.most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x
    fn flat() -> IndexLimit {
        let term = |factor, grid, block| IndexTerm { factor, grid, block };
        let terms = vec![term(1, [1, 1, 0], [1, 0, 0]), term(-1, [0; 3], [0; 3])];
        IndexLimit { terms, most: 2_147_483_647 }
    }

    #[test]
    fn an_index_over_two_axes_is_limited_by_their_product() {
        let block = Dim3::new(256, 1, 1);
        assert_eq!(flat().exceeded(Dim3::new(4096, 2048, 9), block), None);
        let exceeded = flat().exceeded(Dim3::new(4096, 2049, 9), block);
        assert_eq!(exceeded, Some((Axis::X, 2_148_532_223)));
        let most = |axis| flat().most_blocks(axis, Dim3::new(4096, 65_535, 9), block);
        assert_eq!(Axis::ALL.map(most), [128, 2048, 0]);
    }

    #[test]
    fn no_part_of_a_safe_grid_exceeds_the_limit() {
        let (most, block) = (Dim3::new(2_147_483_647, 65_535, 65_535), Dim3::new(1024, 1024, 64));
        let safe = flat().safe_grid(most, block);
        assert_eq!(safe, Dim3::new(1448, 1448, 65_535));
        assert_eq!(flat().exceeded(safe, block), None);
        assert!(flat().exceeded(Dim3::new(1449, 1449, 1), block).is_some());
    }

    #[test]
    fn any_terms_give_some_limit() {
        let odd = IndexTerm { factor: i64::MIN, grid: [255; 3], block: [255; 3] };
        for factor in [i64::MIN, -1, 0, 1, i64::MAX] {
            for most in [0, 1, u64::MAX] {
                let limit = IndexLimit { terms: vec![odd, IndexTerm { factor, ..odd }], most };
                let huge = Dim3::new(u64::MAX, u64::MAX, 0);
                let _ = limit.exceeded(huge, huge);
                assert!(limit.most_blocks(Axis::X, huge, huge) <= huge.x);
                assert!(limit.safe_grid(huge, huge).x <= huge.x);
            }
        }
        let none = IndexLimit { terms: Vec::new(), most: 0 };
        assert_eq!(none.exceeded(Dim3::ONE, Dim3::ONE), None);
    }
}
