//! Plans: how a batch or a grid is launched: in one launch, in chunks or parts, or with a folded grid.

pub(crate) mod arguments;
pub(crate) mod backoff;
pub(crate) mod batch;
#[cfg(feature = "serde")]
pub mod check;
pub(crate) mod choice;
pub(crate) mod chunks;
pub(crate) mod explain;
pub(crate) mod launches;
pub(crate) mod parts;
pub(crate) mod planner;
pub(crate) mod rewritten;
pub(crate) mod run;
pub(crate) mod signature;
pub(crate) mod slot;
