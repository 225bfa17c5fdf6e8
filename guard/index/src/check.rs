//! A place of the text where a value is taken as a number of 32 bits.

use super::poly::Poly;
use super::trace::Taken;
use super::values::Test;

/// A value that an instruction takes as a number of 32 bits.
pub(super) struct Check {
    pub(super) value: Poly,
    pub(super) taken_as: Taken,
    pub(super) context: u32,
    /// The number of the instruction that computes it.
    pub(super) place: usize,
    pub(super) is_address: bool,
    /// Whether it depends on the grid, or is a product of parameters and values from memory.
    pub(super) is_index: bool,
    /// Whether the result is as exact if the value is negative and the type unsigned: a comparison of both ends of a range,
    /// or an address.
    pub(super) may_be_negative: bool,
    /// Whether it is unknown what follows if the value exceeds its type.
    pub(super) is_doubt: bool,
    /// The comparison that takes the value.
    pub(super) compare: Option<Test>,
}
