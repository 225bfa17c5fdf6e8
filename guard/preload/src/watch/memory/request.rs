//! Allocations as programs ask for them.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};

use gridguard_report::MemoryKind;

use crate::driver::Driver;
use crate::process::guarded;
use crate::watch::memory::live::DEVICES;

/// An allocation as the program asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The hook and slot that it came through.
    pub(crate) through: (usize, usize),
    pub(crate) kind: MemoryKind,
    pub(crate) bytes: u64,
    /// The number of the device, if it is not the current one.
    pub(crate) device: Option<c_int>,
}

/// Devices of the process; 0 before they were counted.
static DEVICE_COUNT: AtomicI32 = AtomicI32::new(0);

impl Request {
    #[inline(always)]
    pub(crate) fn new(through: (usize, usize), kind: MemoryKind, bytes: usize) -> Self {
        Self { through, kind, bytes: wide(bytes), device: None }
    }

    /// The number of the device whose memory is asked for, or that is current.
    #[inline]
    pub(crate) fn device_number(&self) -> u8 {
        let device = match self.device {
            Some(device) => device,
            None if DEVICE_COUNT.load(Ordering::Relaxed) == 1 => 0,
            None => self.ask_device(),
        };
        // Further devices count as the last one that is distinguished.
        u8::try_from(device).unwrap_or(u8::MAX).min(LAST_DEVICE)
    }

    #[cold]
    fn ask_device(&self) -> c_int {
        let device = guarded::run(|| {
            let driver = Driver::of(self.through);
            if DEVICE_COUNT.load(Ordering::Relaxed) == 0 {
                DEVICE_COUNT.store(driver.count_devices().unwrap_or(0), Ordering::Relaxed);
            }
            driver.device_number()
        });
        device.flatten().unwrap_or(0)
    }
}

#[allow(clippy::as_conversions, reason = "a constant that fits")]
const LAST_DEVICE: u8 = DEVICES as u8 - 1;

#[inline(always)]
pub(crate) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
