//! Plans: how a batch is served by one launch, by launches of chunks, or by a folded grid.

pub(crate) mod arguments;
pub(crate) mod backoff;
pub(crate) mod batch;
pub(crate) mod choice;
pub(crate) mod chunk;
pub(crate) mod explain;
pub(crate) mod launches;
pub(crate) mod planner;
pub(crate) mod run;
pub(crate) mod signature;
