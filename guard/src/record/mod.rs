//! What a guard keeps of its launches: counters, and the recent launches of each context.

pub(crate) mod counters;
#[cfg(feature = "cuda")]
pub(crate) mod recent;
