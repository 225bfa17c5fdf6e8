//! Between counts and measured quantities: the one place where a number may round.

/// `count` as a real number, exact up to 2^53.
#[allow(clippy::as_conversions, reason = "no lossless conversion exists, and 2^53 is enough")]
pub(crate) const fn real(count: u64) -> f64 {
    count as f64
}

/// The nearest whole number: 0 for what is negative or not a number, `u64::MAX` for what is larger.
#[allow(clippy::as_conversions, reason = "saturates, which is what is wanted")]
pub(crate) const fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// A length as a count.
pub(crate) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A count as a position in memory.
pub(crate) fn position(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
