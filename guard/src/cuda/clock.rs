//! The cheapest clock that never goes back.

/// Nanoseconds since some moment in the past, as of the system's last tick (1 to 10 ms).
///
/// On the way of a launch `Instant` would cost more than all else of the recorder: it reads the
/// processor's counter, this reads what the kernel noted at its last tick.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[inline]
pub(super) fn now_ns() -> u64 {
    use core::ffi::{c_int, c_long};

    /// `CLOCK_MONOTONIC_COARSE`.
    const MONOTONIC_COARSE: c_int = 6;

    /// `struct timespec`.
    #[repr(C)]
    struct Timespec {
        seconds: i64,
        nanoseconds: c_long,
    }

    unsafe extern "C" {
        fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    }

    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the C library that std links has it, and the pointer is to a live struct of the
    // layout that it has on every 64-bit Linux. Where it fails, the zeros stay.
    unsafe { clock_gettime(MONOTONIC_COARSE, &raw mut time) };
    time.seconds
        .unsigned_abs()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.nanoseconds.unsigned_abs())
}

/// Nanoseconds since the first call.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub(super) fn now_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = FIRST.get_or_init(Instant::now).elapsed();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
