//! The clock of work on the host.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use gridguard::profile::{L2, Policy};
use rayon::prelude::*;

use crate::failure::Measured;
use crate::measure::{Clock, Sample, Work};
use crate::stats::real;

/// Times work on the host by the monotonic clock.
///
/// A cold policy first writes twice the last-level cache, at most 256 MiB, on all threads of rayon's pool,
/// which flushes their private caches too. A hot policy first runs the work once. The policy's submission
/// has no effect on the host. On Linux a sample is [disturbed](Sample::disturbed) if its threads had to wait for a
/// processor.
#[derive(Debug)]
pub struct HostClock {
    /// Overwritten to evict the caches, for a cold policy.
    flush: Option<Vec<u8>>,
}

impl HostClock {
    /// A clock that times by `policy`.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let bytes = || last_level_cache_bytes().saturating_mul(2).min(MAX_FLUSH_BYTES);
        Self { flush: (policy.l2 == L2::Cold).then(|| vec![0; bytes()]) }
    }
}

impl Clock for HostClock {
    fn sample(&mut self, _: u64, work: &mut Work<'_>) -> Measured<Sample> {
        match &mut self.flush {
            Some(flush) => write(flush),
            None => work()?,
        }
        let before = waited_ns();
        let start = Instant::now();
        work()?;
        let time_ns = start.elapsed().as_secs_f64() * 1e9;
        let waited = before.zip(waited_ns()).map(|(before, after)| after.saturating_sub(before));
        let disturbed = waited.is_some_and(|waited| {
            waited > USUAL_WAIT_NS && real(waited) > DISTURBED_FRACTION * time_ns
        });
        Ok(Sample { time_ns, clock_mhz: None, disturbed })
    }

    /// Does nothing: work on the host is done when it returns.
    fn finish(&mut self) -> Measured<()> {
        Ok(())
    }
}

/// How long all threads of this process together have waited for a processor while they could run.
fn waited_ns() -> Option<u64> {
    let waited = |thread: fs::DirEntry| {
        let times = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        times.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    fs::read_dir("/proc/self/task").ok()?.flatten().map(waited).sum()
}

/// Writes to each cache line, on all threads.
fn write(bytes: &mut [u8]) {
    bytes.par_chunks_mut(FLUSH_CHUNK_BYTES).for_each(|chunk| {
        for byte in chunk.iter_mut().step_by(CACHE_LINE_BYTES) {
            *byte = byte.wrapping_add(1);
        }
    });
    black_box(bytes);
}

/// The largest cache that the system reports, or [`USUAL_CACHE_BYTES`].
fn last_level_cache_bytes() -> usize {
    let caches = fs::read_dir(CACHES).into_iter().flatten().flatten();
    let sizes = caches.filter_map(|cache| fs::read_to_string(cache.path().join("size")).ok());
    sizes.filter_map(|size| parse_size(size.trim())).max().unwrap_or(USUAL_CACHE_BYTES)
}

/// `32768K` or `96M` in bytes.
fn parse_size(size: &str) -> Option<usize> {
    let digits = size.trim_end_matches(['K', 'M']);
    let unit = match size.get(digits.len()..)? {
        "" => 1,
        "K" => 1024,
        "M" => 1024 * 1024,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// A sample whose threads waited for more of its time is disturbed: half of a tie.
const DISTURBED_FRACTION: f64 = 0.01;
/// Threads that wake up wait for some microseconds, also on an idle machine.
const USUAL_WAIT_NS: u64 = 50_000;
/// Where Linux describes the caches of its first processor.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";
/// The last-level cache of a large server CPU, if the system reports none.
const USUAL_CACHE_BYTES: usize = 64 * 1024 * 1024;
/// A virtual machine may report the cache of its whole host, too much to flush before each sample.
const MAX_FLUSH_BYTES: usize = 256 * 1024 * 1024;
/// What a thread writes at a time, small enough to balance the threads.
const FLUSH_CHUNK_BYTES: usize = 1024 * 1024;
/// The smallest cache line of the processors that CUDA runs on.
const CACHE_LINE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use gridguard::profile::Submission;

    use super::*;
    use crate::failure::{FailureKind, MeasureFailure};

    fn runs_of_a_sample(l2: L2) -> (u32, Sample) {
        let mut clock = HostClock::new(Policy { l2, submission: Submission::Eager });
        let mut runs = 0;
        let mut work = || {
            runs += 1;
            std::thread::sleep(std::time::Duration::from_millis(2));
            Ok(())
        };
        let sample = clock.sample(0, &mut work).expect("a sample");
        (runs, sample)
    }

    #[test]
    fn cold_work_runs_once_and_hot_work_twice() {
        for (l2, expected) in [(L2::Cold, 1), (L2::Hot, 2)] {
            let (runs, sample) = runs_of_a_sample(l2);
            assert_eq!(runs, expected);
            assert!((2e6..3.6e12).contains(&sample.time_ns), "{sample:?}");
            assert_eq!(sample.clock_mhz, None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_sample_whose_threads_wait_for_a_processor_is_disturbed() {
        let processors = std::thread::available_parallelism().expect("known").get();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(processors + 1).build();
        let pool = pool.expect("threads");
        let mut clock = HostClock::new(Policy { l2: L2::Hot, submission: Submission::Eager });
        let mut work = || {
            let start = Instant::now();
            pool.broadcast(|_| while start.elapsed().as_millis() < 100 {});
            Ok(())
        };
        assert!(clock.sample(0, &mut work).expect("a sample").disturbed);
    }

    #[test]
    fn a_failure_of_the_work_fails_the_sample() {
        let mut clock = HostClock::new(Policy { l2: L2::Hot, submission: Submission::Eager });
        let failure = MeasureFailure::new(FailureKind::Launch, "refused");
        let result = clock.sample(0, &mut || Err(failure.clone()));
        assert_eq!(result, Err(failure));
    }

    #[test]
    fn cache_sizes_are_parsed_with_their_unit() {
        assert_eq!(parse_size("32768K"), Some(32 << 20));
        assert_eq!(parse_size("96M"), Some(96 << 20));
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!(parse_size("many"), None);
    }
}
