//! The words of the additional parameter of a form.

use core::num::NonZeroU32;

/// The 32-bit words of the parameter that the shifted form of an entry takes.
pub const SHIFTED_WORDS: usize = 6;
/// The 32-bit words of the parameter that the folded form of an entry takes.
pub const FOLDED_WORDS: usize = 10;

/// The words of the additional parameter of a shifted entry, for the chunk at block `first` of a launch of `grid`
/// blocks. The driver launches the blocks of the chunk.
///
/// Every block sees `first` plus its index in the chunk as its block index, and `grid` as the grid size.
///
/// ```
/// // Blocks 65,535 to 69,999 of 70,000 on y: the driver is given a grid of (4, 4465, 1).
/// let words = gridguard_ptx::shifted_words([4, 70_000, 1], [0, 65_535, 0]);
/// assert_eq!(words, [0, 65_535, 0, 4, 70_000, 1]);
/// ```
pub const fn shifted_words(grid: [u32; 3], first: [u32; 3]) -> [u32; SHIFTED_WORDS] {
    let ([x, y, z], [first_x, first_y, first_z]) = (grid, first);
    [first_x, first_y, first_z, x, y, z]
}

/// A grid that is launched flat on x. Its blocks compute their indices by division.
///
/// ```
/// use gridguard_ptx::Fold;
///
/// let fold = Fold::new([4, 70_000, 1]).expect("at most 2^31 blocks");
/// assert_eq!(fold.blocks(), 280_000);
/// assert_eq!(fold.block_index(279_999), [3, 69_999, 0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    grid: [u32; 3],
    blocks: u32,
    by_x: Divisor,
    by_y: Divisor,
}

impl Fold {
    /// The most blocks of a folded grid. One launch on x takes one block less.
    pub const MAX_BLOCKS: u32 = 1 << 31;

    /// The fold of `grid`. `None` if an axis is zero or there are more than [`Self::MAX_BLOCKS`] blocks.
    pub fn new(grid: [u32; 3]) -> Option<Self> {
        let [x, y, z] = grid;
        let blocks = x.checked_mul(y)?.checked_mul(z).filter(|all| *all <= Self::MAX_BLOCKS)?;
        NonZeroU32::new(blocks)?;
        let (x, y) = (NonZeroU32::new(x)?, NonZeroU32::new(y)?);
        Some(Self { grid, blocks, by_x: Divisor::new(x), by_y: Divisor::new(y) })
    }

    /// The number of blocks.
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The words of the additional parameter of a folded entry, for the chunk that begins at block
    /// `first` of the flat grid. The driver launches the chunk's number of blocks on x.
    ///
    /// Words that an entry needs together form a pair, which one instruction loads.
    pub const fn words(&self, first: u32) -> [u32; FOLDED_WORDS] {
        let ([x, y, z], by_x, by_y) = (self.grid, self.by_x, self.by_y);
        [
            first,
            x.wrapping_neg(),
            by_x.multiplier,
            by_x.shift,
            by_y.multiplier,
            by_y.shift,
            y.wrapping_neg(),
            x,
            y,
            z,
        ]
    }

    /// The block index of block `flat` of the flat grid, computed as in a folded entry.
    pub fn block_index(&self, flat: u32) -> [u32; 3] {
        let [x, y, _] = self.grid;
        let rest = self.by_x.divide(flat);
        let z = self.by_y.divide(rest);
        [flat.wrapping_sub(rest.wrapping_mul(x)), rest.wrapping_sub(z.wrapping_mul(y)), z]
    }
}

/// Division of any number below 2^31 by a constant up to 2^31, with a multiplication and a shift.
///
/// Let `2^(k - 1) < divisor <= 2^k`. The multiplier is `2^(31 + k) / divisor` rounded up, and has 32 bits. The
/// rounding error is below one. Therefore the error of `number * multiplier / 2^(31 + k)` is below
/// `number / 2^(31 + k)`, which is below `2^-k` and at most `1 / divisor`. A quotient that is not whole is at
/// least `1 / divisor` below the next whole number, so rounding down gives the exact result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Divisor {
    multiplier: u32,
    shift: u32,
}

impl Divisor {
    fn new(divisor: NonZeroU32) -> Self {
        let shift = 63 - (divisor.get() - 1).leading_zeros();
        let multiplier = (1_u64 << shift).div_ceil(divisor.get().into());
        Self { multiplier: u32::try_from(multiplier).unwrap_or(u32::MAX), shift }
    }

    fn divide(self, number: u32) -> u32 {
        let product = u64::from(number) * u64::from(self.multiplier);
        u32::try_from(product >> self.shift).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Dividends are smaller.
    const END: u32 = 1 << 31;

    fn is_exact(number: u32, divisor: u32) {
        let fast = Divisor::new(NonZeroU32::new(divisor).expect("not zero"));
        assert_eq!(fast.divide(number), number / divisor, "{number} / {divisor}");
    }

    /// Numbers around `number / divisor` being a whole one, and the ends.
    fn boundaries(divisor: u32) -> impl Iterator<Item = u32> {
        let last = (END - 1) / divisor * divisor;
        let middle = (END - 1) / 2 / divisor * divisor;
        let around = |number: u32| [number.wrapping_sub(1), number, number.wrapping_add(1)];
        let all = [0, divisor, divisor.wrapping_mul(2), middle, last, END - 1];
        all.into_iter().flat_map(around).filter(|number| *number < END)
    }

    #[test]
    fn division_is_exact_for_every_small_divisor_at_its_boundaries() {
        for divisor in 1..=1 << 17 {
            boundaries(divisor).for_each(|number| is_exact(number, divisor));
        }
    }

    #[test]
    fn multiplier_and_shift_are_exact_by_the_theorem_for_every_kind_of_divisor() {
        let end = u64::from(END);
        for divisor in (1..=1_u64 << 17).chain(end - (1 << 17)..=end) {
            let small =
                NonZeroU32::new(u32::try_from(divisor).expect("32 bits")).expect("positive");
            let Divisor { multiplier, shift } = Divisor::new(small);
            let (power, product) = (1_u128 << shift, u128::from(multiplier) * u128::from(divisor));
            assert!(divisor << 31 <= 1_u64 << shift && 1_u64 << shift < divisor << 32, "{divisor}");
            // For the largest number the error of the quotient is below 1 / divisor.
            let error = product.checked_sub(power).expect("rounded up");
            assert!(error * u128::from(END - 1) < power, "{divisor}");
        }
    }

    #[test]
    fn a_fold_of_nothing_or_of_too_many_blocks_is_none() {
        for grid in [
            [0, 1, 1],
            [1, 0, 1],
            [1, 1, 0],
            [0, u32::MAX, u32::MAX],
            [1 << 16, 1 << 16, 1],
            [END + 1, 1, 1],
            [2, 1, (END >> 1) + 1],
        ] {
            assert_eq!(Fold::new(grid), None, "{grid:?}");
        }
        for grid in [[END, 1, 1], [1, END, 1], [1, 1, END], [2, 1 << 10, 1 << 20]] {
            let most = Fold::new(grid).expect("2^31 blocks");
            let last = grid.map(|size| size - 1);
            assert_eq!((most.blocks(), most.block_index(END - 1)), (END, last));
        }
        // The largest prime below 2^31.
        let prime = Fold::new([1, END - 1, 1]).expect("fewer");
        assert_eq!(prime.block_index(END - 2), [0, END - 2, 0]);
    }

    #[test]
    fn words_are_in_the_order_in_which_forms_read_them() {
        assert_eq!(shifted_words([1, 2, 3], [4, 5, 6]), [4, 5, 6, 1, 2, 3]);
        let words = Fold::new([4, 3, 2]).expect("small").words(7);
        let minus = u32::wrapping_neg;
        assert_eq!(words, [7, minus(4), 1 << 31, 33, 0xaaaa_aaab, 33, minus(3), 4, 3, 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn division_is_exact(number in 0..END, divisor in 1..=END, small in 1_u32..70_000) {
            is_exact(number, divisor);
            is_exact(number, small);
        }

        #[test]
        fn a_fold_gives_the_block_index_back(
            x in 1_u32..100_000, y in 1_u32..100_000, z in 1_u32..100_000, at: u32,
        ) {
            if let Some(fold) = Fold::new([x, y, z]) {
                let flat = at % fold.blocks();
                prop_assert_eq!(fold.block_index(flat), [flat % x, flat / x % y, flat / x / y]);
            }
        }
    }
}
