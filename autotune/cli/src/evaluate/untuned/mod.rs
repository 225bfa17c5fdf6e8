//! Problems whose default is far from the best, since nobody tuned it: launch parameters that
//! matter, and passes for which the fastest chunk stays in the cache.

mod device;
mod host;
mod open;
mod problem;
mod workload;

pub(crate) use open::open;
pub(crate) use problem::UntunedProblem;
