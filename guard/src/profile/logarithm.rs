//! Distances between sizes, in octaves.

/// The part of an octave that distances are counted in: 2^-16.
const FRACTION_BITS: u32 = 16;

/// The logarithm of `size` to base 2 in 65,536ths, rounded down. Integers alone, so that every
/// machine ranks neighbours alike. Zero has that of one; it is never compared with another size.
pub(super) fn log2(size: u64) -> u32 {
    let whole = size.checked_ilog2().unwrap_or(0);
    let mut log = whole;
    // From 1 to 2, as a multiple of 2^-63.
    let mut mantissa = size.max(1) << (63 - whole);
    for _ in 0..FRACTION_BITS {
        // Squaring doubles the logarithm: its next binary digit is whether the square reaches 2.
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        let carry = square >> 64 != 0;
        let square = if carry { square >> 1 } else { square };
        mantissa = u64::try_from(square).unwrap_or(u64::MAX);
        log = (log << 1) | u32::from(carry);
    }
    log
}

/// Thousandths of an octave, rounded to the nearest.
pub(super) fn millioctaves(distance: u32) -> u32 {
    let thousandths = (u64::from(distance) * 1000 + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS;
    u32::try_from(thousandths).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_whole() {
        for power in 0..64 {
            assert_eq!(log2(1 << power), power << FRACTION_BITS);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn others_agree_with_floating_point() {
        for size in (1..10_000_u32).chain([u32::MAX - 1, u32::MAX]) {
            let expected = f64::from(size).log2() * 65_536.0;
            assert!((f64::from(log2(u64::from(size))) - expected).abs() < 1.01, "{size}");
        }
        assert_eq!(log2(u64::MAX), (64 << FRACTION_BITS) - 1);
    }

    #[test]
    fn millioctaves_are_rounded() {
        assert_eq!(millioctaves(log2(96) - log2(64)), 585);
        assert_eq!(millioctaves(1 << FRACTION_BITS), 1000);
    }
}
