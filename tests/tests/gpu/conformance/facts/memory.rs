//! Local memory for more threads than the device has memory for.

use gridguard::cuda;
use gridguard_test_support::conformance::raw::{LaunchCall, RawDriver};

use super::super::kernels::Opened;
use super::features::debug;
use super::{Facts, blocks_of, loaded};

/// Words of local memory of a thread: 1 KiB, 64 KiB, and the most that CUDA has.
const WORDS: [&str; 3] = ["256", "16384", "131072"];
/// What is left free of the device's memory.
const LEFT: u64 = 2 << 30;

pub(super) fn measure(driver: &RawDriver, facts: &mut Facts) {
    for words in WORDS {
        let (free, _) = cuda::free_memory(0).expect("memory");
        let taken = usize::try_from(free.saturating_sub(LEFT)).expect("bytes");
        let request = blocks_of(32, 1);
        let what = format!("{words} words of local memory");
        let kernel = match loaded(driver, &[("LOCAL_WORDS", words)], Opened::No) {
            Ok(kernel) => kernel,
            Err(error) => {
                facts.note(format!("{what}: loading"), error);
                continue;
            }
        };
        facts.note(
            format!("{what}: bytes a thread"),
            kernel.kernel.limits.kernel().local_bytes_per_thread,
        );
        let full =
            driver.with_memory_taken(taken, || kernel.answer(driver, &request, LaunchCall::Oldest));
        facts.note(format!("{what}: launch and synchronize, {LEFT} bytes free"), debug(&full));
        let empty = kernel.answer(driver, &request, LaunchCall::Oldest);
        facts.note(format!("{what}: launch and synchronize, memory free"), debug(&empty));
        let (after, _) = cuda::free_memory(0).expect("memory");
        facts.note(format!("{what}: bytes that the device lost"), free.saturating_sub(after));
    }
}
