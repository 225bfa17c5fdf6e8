//! Synthetic elements for inputs and weights.

use crate::element::Element;

/// `len` elements, uniformly distributed with mean 0 and variance 1; the same for the same `seed`.
///
/// ```
/// use gridguard_kernels::synthetic;
///
/// assert_eq!(synthetic::<f32>(4, 1), synthetic::<f32>(8, 1)[..4]);
/// ```
pub fn synthetic<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0xd6e8_feb8_6659_fd93);
    let element = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // 16 bits, which f32 holds exactly.
        let unit = f32::from(u16::try_from(x >> 48).unwrap_or(0)) / 65_536.0;
        T::narrow((unit * 2.0 - 1.0) * 3.0_f32.sqrt())
    };
    std::iter::repeat_with(element).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_seed_gives_other_elements_of_the_same_variance() {
        let mean_square = |seed| {
            let elements = synthetic::<f32>(10_000, seed);
            elements.iter().map(|x| x * x).sum::<f32>() / 10_000.0
        };
        assert!((mean_square(1) - 1.0).abs() < 0.05 && (mean_square(2) - 1.0).abs() < 0.05);
        assert_ne!(synthetic::<f32>(100, 1), synthetic::<f32>(100, 2));
        assert_eq!(synthetic::<f32>(100, 1), synthetic::<f32>(100, 1));
    }
}
