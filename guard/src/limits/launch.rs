//! One kernel's limits on one device.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::ceilings::{Ceilings, PlainCeilings, registers_per_warp};
use super::{DeviceLimits, KernelLimits};

/// One kernel's limits on one device: what a launch is validated against.
///
/// Cheap to clone. Each has an identity that validated launches carry, so that a launch validated
/// for one kernel cannot be sent to another.
#[derive(Clone, Debug)]
pub struct LaunchLimits {
    id: u64,
    device: Arc<DeviceLimits>,
    kernel: Arc<KernelLimits>,
    plain: PlainCeilings,
    ceilings: Ceilings,
}

impl LaunchLimits {
    /// The limits of `kernel` on `device`.
    #[must_use]
    pub fn new(device: impl Into<Arc<DeviceLimits>>, kernel: KernelLimits) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let device = device.into();
        let ceilings = Ceilings::new(&device, &kernel);
        let plain = PlainCeilings::of(&ceilings);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, device, kernel: Arc::new(kernel), plain, ceilings }
    }

    /// The same limits where the launcher opts in to large dynamic shared memory by itself: the
    /// device's opt-in ceiling less the static part counts.
    #[must_use]
    pub fn with_automatic_opt_in(self) -> Self {
        let mut kernel = KernelLimits::clone(&self.kernel);
        let room = self.ceilings.shared_room_bytes.unwrap_or(0);
        kernel.max_dynamic_shared_bytes = kernel.max_dynamic_shared_bytes.max(room);
        Self::new(self.device, kernel)
    }

    /// The device's part.
    #[must_use]
    pub fn device(&self) -> &DeviceLimits {
        &self.device
    }

    /// The kernel's part.
    #[must_use]
    pub fn kernel(&self) -> &KernelLimits {
        &self.kernel
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) const fn plain(&self) -> &PlainCeilings {
        &self.plain
    }

    pub(crate) const fn ceilings(&self) -> &Ceilings {
        &self.ceilings
    }

    /// Registers that a warp takes, rounded up by the allocator; 0 where not known.
    pub(crate) fn registers_per_warp(&self) -> u128 {
        registers_per_warp(&self.device, &self.kernel)
    }

    /// Registers that a block of `threads` takes, with both roundings of the allocator.
    pub(crate) fn registers_per_block(&self, threads: u128) -> u128 {
        let warp = u128::from(self.device.warp_size.max(1));
        let warps = threads.div_ceil(warp);
        let granularity = u128::from(self.device.warp_allocation_granularity.max(1));
        let warps = warps.div_ceil(granularity).saturating_mul(granularity);
        warps.saturating_mul(self.registers_per_warp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_threads_round_warps_down_to_the_granularity() {
        let mut device = DeviceLimits::any_device();
        device.max_registers_per_block = 65_536;
        let mut kernel = KernelLimits::unknown("k");
        kernel.registers_per_thread = 210;
        let limits = LaunchLimits::new(device, kernel);
        // 6,912 registers a warp: nine warps fit, but warps come in fours.
        assert_eq!(limits.ceilings().register_threads, Some(256));
        assert_eq!(limits.registers_per_block(256), 8 * 6912);
        assert_eq!(limits.registers_per_block(257), 12 * 6912);
    }

    #[test]
    fn static_shared_memory_above_the_ceiling_leaves_no_room() {
        let mut kernel = KernelLimits::unknown("k");
        kernel.static_shared_bytes = 1 << 20;
        let limits = LaunchLimits::new(DeviceLimits::any_device(), kernel);
        assert_eq!(limits.ceilings().shared_room_bytes, None);
    }
}
