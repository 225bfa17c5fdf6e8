//! Limits of devices and kernels, as plain data.
//!
//! The module `cuda` fills them from the driver, `catalog` from the GPU catalogue.

pub(crate) mod attributes;
pub(crate) mod device;
pub(crate) mod index;
pub(crate) mod kernel;
pub(crate) mod launch;
pub(crate) mod occupancy;

pub use device::{ComputeCapability, DeviceLimits, LOCAL_BYTES_PER_THREAD};
pub use index::{IndexLimit, IndexTerm};
pub use kernel::{KernelLimits, LocalMemory};
pub use launch::{FormLimits, LaunchLimits};
pub use occupancy::OccupancyLimits;
