//! Measures kernels for `tune`: arguments, devices, workloads, the measuring process, and
//! progress bars.

pub(crate) mod args;
pub(crate) mod idle;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod target;
pub(crate) mod workload;
