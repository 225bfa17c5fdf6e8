//! The replacements that the program calls. They return the results of the driver or the runtime, and pass launches and
//! allocations to `watch`, `refuse`, `fix` and `report`.
//!
//! - `lookup`, `callers`, `trampoline`: how programs find the functions;
//! - `table`: the replacement of each function, also for `cuGetProcAddress`;
//! - `launch`, `graph`, `runtime`, `memory`, `find`, `synchronize`: the replacements;
//! - `relay`: launches past a runtime that refuses them, or a launcher that skips them;
//! - `triton`: launches that Triton's launcher skips;
//! - `logged`: launches that a static runtime refuses;
//! - `outcome`, `session`: work after a call, off the hot path.

pub(crate) mod callers;
mod compile;
mod find;
mod graph;
mod launch;
mod logged;
mod lookup;
mod memory;
mod outcome;
mod relay;
mod runtime;
pub(crate) mod session;
mod synchronize;
mod table;
mod trampoline;
mod triton;
