//! Limits of devices and kernels, as plain data.
//!
//! Nothing here queries anything: [`crate::cuda`] fills these from the driver, [`crate::catalog`]
//! from the GPU catalogue, tests and offline tools by hand.

pub(crate) mod attributes;
pub(crate) mod device;
pub(crate) mod kernel;
pub(crate) mod launch;
pub(crate) mod occupancy;

pub use attributes::DeviceFacts;
pub use device::{
    ComputeCapability, DeviceLimits, LARGE_PARAMETER_BYTES, LOCAL_BYTES_PER_THREAD,
    PARAMETER_BYTES, SHARED_BYTES_WITHOUT_OPT_IN,
};
pub use kernel::{KernelLimits, LocalMemory};
pub use launch::{FormLimits, LaunchLimits};
pub use occupancy::OccupancyLimits;
