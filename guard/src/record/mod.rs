//! What a guard remembers of its launches: how many there were, and the recent ones.

mod alone;
mod counters;
#[cfg(feature = "cuda")]
pub(crate) mod flight;

pub(crate) use counters::Counters;
pub use counters::Counts;
