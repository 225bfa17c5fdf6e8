//! Clocks: how work is timed on a device and on the host.

mod delay;
mod device;
mod host;

pub use device::DeviceClock;
pub use host::HostClock;
