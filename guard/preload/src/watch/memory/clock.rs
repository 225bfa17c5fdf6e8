//! The system's clocks.

use core::mem::MaybeUninit;

/// The time of a clock in nanoseconds. `CLOCK_MONOTONIC_COARSE` has the time of the kernel's last tick, at most some
/// milliseconds ago, and costs much less than `CLOCK_MONOTONIC`.
pub(super) fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the pointer is to a structure of this type; zeros are valid.
    let now = unsafe {
        libc::clock_gettime(clock, now.as_mut_ptr());
        now.assume_init()
    };
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    number(now.tv_sec).wrapping_mul(1_000_000_000).wrapping_add(number(now.tv_nsec))
}
