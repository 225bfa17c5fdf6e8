//! What `tune`, `evaluate` and `profile verify` share: arguments, devices, kernels to measure, the
//! process that measures them, and progress bars.

pub(crate) mod args;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod target;
pub(crate) mod workload;
