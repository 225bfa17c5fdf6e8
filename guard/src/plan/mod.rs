//! Plans: how a batch is launched: in one launch, in chunks, or with a folded grid.

pub(crate) mod arguments;
pub(crate) mod backoff;
pub(crate) mod batch;
#[cfg(feature = "serde")]
pub mod check;
pub(crate) mod choice;
pub(crate) mod chunks;
pub(crate) mod explain;
pub(crate) mod launches;
pub(crate) mod planner;
pub(crate) mod run;
pub(crate) mod signature;
pub(crate) mod slot;
