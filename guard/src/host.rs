//! The CPU back end: runs plans chunk by chunk under any GPU's limits, items in parallel.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rayon::prelude::*;

use crate::plan::launches::PlannedLaunch;
use crate::plan::run::{Launcher, panic_message};

/// Why the host failed to run a chunk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The output is too short for the items of the batch.
    #[error("the output has {available} elements, the items up to {end} need {needed}")]
    OutputTooShort {
        /// The item after the chunk's last.
        end: u64,
        /// Elements that the items up to there need; saturated.
        needed: u64,
        /// Elements of the output.
        available: usize,
    },
    /// The kernel panicked.
    #[error("the host kernel panicked: {message}")]
    KernelPanicked {
        /// The panic's message.
        message: String,
    },
}

/// Runs a kernel given as a closure over items, each with its own slice of the output.
///
/// ```
/// use gridguard::{
///     Axis, BatchAxis, Choice, DeviceLimits, Dim3, HostLauncher, KernelLimits, LaunchLimits,
///     LaunchRequest, Plan, run,
/// };
///
/// let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("squares"));
/// let request = LaunchRequest::new(Dim3::new(1, 100_000, 1), Dim3::ONE);
/// let batch = BatchAxis::new(Axis::Y, 100_000);
/// let plan = Plan::new(&request, Some(&batch), &limits, Choice::AUTOMATIC)?;
///
/// let mut squares = vec![0; 100_000];
/// let square = |item: u64, out: &mut [u64]| out[0] = item * item;
/// assert_eq!(run(&plan, &mut HostLauncher::new(&mut squares, 1, square))?, 2);
/// assert_eq!(squares[99_999], 99_999 * 99_999);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct HostLauncher<'a, T, K> {
    output: &'a mut [T],
    elements_per_item: usize,
    kernel: K,
}

impl<'a, T, K> HostLauncher<'a, T, K>
where
    T: Send,
    K: Fn(u64, &mut [T]) + Sync,
{
    /// A launcher of `kernel`, which is called with an item and its `elements_per_item` elements of
    /// `output`. Zero elements count as one.
    pub fn new(output: &'a mut [T], elements_per_item: usize, kernel: K) -> Self {
        Self { output, elements_per_item: elements_per_item.max(1), kernel }
    }
}

impl<T, K> Launcher for HostLauncher<'_, T, K>
where
    T: Send,
    K: Fn(u64, &mut [T]) + Sync,
{
    type Error = HostError;

    fn launch(&mut self, planned: &PlannedLaunch) -> Result<(), HostError> {
        let chunk = planned.chunk;
        let per_item = self.elements_per_item;
        let available = self.output.len();
        let place = |item: u64| usize::try_from(item).ok()?.checked_mul(per_item);
        let range = match (place(chunk.start), place(chunk.end())) {
            (Some(start), Some(end)) if end <= available => start..end,
            (_, end) => {
                let needed = end.and_then(|end| u64::try_from(end).ok()).unwrap_or(u64::MAX);
                return Err(HostError::OutputTooShort { end: chunk.end(), needed, available });
            }
        };
        let output = self.output.get_mut(range).unwrap_or_default();
        let kernel = &self.kernel;
        // The caller discards the output of a panicked chunk, as after a device fault.
        catch_unwind(AssertUnwindSafe(|| {
            output
                .par_chunks_mut(per_item)
                .enumerate()
                .for_each(|(place, out)| kernel(item_at(chunk.start, place), out));
        }))
        .map_err(|panic| HostError::KernelPanicked { message: panic_message(panic.as_ref()) })
    }
}

/// An index within a chunk is below its number of items, so the sum is an item of the batch.
fn item_at(start: u64, place: usize) -> u64 {
    start.saturating_add(u64::try_from(place).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest,
        Plan, run,
    };

    fn plan(items: u64) -> Plan {
        let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
        let request = LaunchRequest::new(Dim3::new(1, items, 1), Dim3::ONE);
        let batch = BatchAxis::new(Axis::Y, items);
        Plan::new(&request, Some(&batch), &limits, Choice::AUTOMATIC).expect("splits")
    }

    #[test]
    fn every_item_is_written_once() {
        let mut output = vec![u64::MAX; 2 * 65_537];
        let kernel = |item: u64, out: &mut [u64]| {
            assert_eq!(out, [u64::MAX; 2], "written before");
            out.fill(item);
        };
        assert_eq!(run(&plan(65_537), &mut HostLauncher::new(&mut output, 2, kernel)), Ok(2));
        assert!(output.chunks(2).zip(0..).all(|(pair, item)| pair == [item; 2]));
    }

    #[test]
    fn a_short_output_stops_the_plan_with_the_items_done() {
        let mut output = vec![0_u8; 65_536];
        let stopped = run(&plan(65_537), &mut HostLauncher::new(&mut output, 1, |_, _| {}))
            .expect_err("one element is missing");
        assert_eq!(stopped.items_done, 32_768);
        let missing = HostError::OutputTooShort { end: 65_537, needed: 65_537, available: 65_536 };
        assert_eq!(stopped.source, missing);
    }

    #[test]
    fn a_panic_in_a_kernel_is_an_error_with_its_message() {
        let mut output = vec![0_u8; 10];
        let kernel = |item: u64, _: &mut [u8]| assert!(item < 7, "item {item} is bad");
        let stopped = run(&plan(10), &mut HostLauncher::new(&mut output, 1, kernel))
            .expect_err("the kernel panics");
        assert!(stopped.source.to_string().contains("is bad"));
    }
}
