//! Pipelines on the host: what they refuse, what they plan, and that chunks change no result.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod building;
mod failures;
mod planning;
mod random;
mod running;
#[cfg(feature = "profile")]
mod tuned;

use gridguard::{DeviceLimits, KernelLimits, LaunchLimits};

/// The limits of a kernel called `name` on any device.
fn limits(name: &str) -> LaunchLimits {
    LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown(name))
}
