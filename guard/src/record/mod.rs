//! The launch records of a guard: counters, and the recent launches of each context.

pub(crate) mod counters;
#[cfg(feature = "cuda")]
pub(crate) mod recent;
