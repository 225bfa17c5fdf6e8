//! The CPU back end: runs plans chunk by chunk under any GPU's limits, items in parallel.

use rayon::prelude::*;

use crate::guard::Guard;
use crate::observe;
use crate::plan::chunks::Chunk;
use crate::plan::launches::Plan;
use crate::plan::run::{PartialRun, catch_panic, run};

/// Why the host failed to run a chunk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum HostError {
    /// The output is too short for the items of the batch.
    #[error("the output has {available} elements, the items up to {end} need {needed}")]
    OutputTooShort { end: u64, needed: u64, available: usize },
    /// The kernel panicked.
    #[error("the host kernel panicked: {message}")]
    KernelPanicked { message: String },
}

impl Guard {
    /// Runs every chunk of `plan` on the CPU, and returns the number of launches: `kernel` is called with each item
    /// and its `elements_per_item` elements of `output`, in parallel. Zero elements count as one.
    ///
    /// ```
    /// use gridguard::{
    ///     Axis, BatchAxis, Choice, DeviceLimits, Dim3, Guard, KernelLimits, LaunchRequest,
    /// };
    ///
    /// let guard = Guard::host(DeviceLimits::any_device());
    /// let limits = guard.limits_for(KernelLimits::unknown("squares"));
    /// let request = LaunchRequest::new(Dim3::new(1, 100_000, 1), Dim3::ONE);
    /// let batch = BatchAxis::new(Axis::Y, 100_000);
    /// let plan = guard.plan(&request, Some(&batch), &limits, Choice::AUTOMATIC)?;
    ///
    /// let mut squares = vec![0; 100_000];
    /// let square = |item: u64, out: &mut [u64]| out[0] = item * item;
    /// assert_eq!(guard.launch_on_host(&plan, &mut squares, 1, square)?, 2);
    /// assert_eq!(squares[99_999], 99_999 * 99_999);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PartialRun`] with the first chunk that failed, and the items done before it.
    pub fn launch_on_host<T, K>(
        &self,
        plan: &Plan,
        output: &mut [T],
        elements_per_item: usize,
        kernel: K,
    ) -> Result<u64, PartialRun<HostError>>
    where
        T: Send,
        K: Fn(u64, &mut [T]) + Sync,
    {
        let ran =
            run(plan, |planned| launch_chunk(&planned.chunk, output, elements_per_item, &kernel));
        match &ran {
            Ok(launches) => {
                observe::launched(None, plan);
                self.counters.ran(*launches);
            }
            Err(stopped) => self.counters.stopped(stopped.chunk),
        }
        ran
    }
}

/// As [`Guard::launch_on_host`], for one chunk.
fn launch_chunk<T: Send>(
    chunk: &Chunk,
    output: &mut [T],
    elements_per_item: usize,
    kernel: &(impl Fn(u64, &mut [T]) + Sync),
) -> Result<(), HostError> {
    let per_item = elements_per_item.max(1);
    let available = output.len();
    let place = |item: u64| usize::try_from(item).ok()?.checked_mul(per_item);
    let range = match (place(chunk.start), place(chunk.end())) {
        (Some(start), Some(end)) if end <= available => start..end,
        (_, end) => {
            let needed = end.and_then(|end| u64::try_from(end).ok()).unwrap_or(u64::MAX);
            return Err(HostError::OutputTooShort { end: chunk.end(), needed, available });
        }
    };
    let output = output.get_mut(range).unwrap_or_default();
    // An index within a chunk is below its number of items, so the sum is an item of the batch.
    let item_at = |place| chunk.start.saturating_add(u64::try_from(place).unwrap_or(u64::MAX));
    let items = output.par_chunks_mut(per_item).enumerate();
    catch_panic(|| items.for_each(|(place, out)| kernel(item_at(place), out)))
        .map_err(|message| HostError::KernelPanicked { message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest,
    };

    fn guard() -> Guard {
        Guard::host(DeviceLimits::any_device())
    }

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
        assert_eq!(guard().launch_on_host(&plan(65_537), &mut output, 2, kernel), Ok(2));
        assert!(output.chunks(2).zip(0..).all(|(pair, item)| pair == [item; 2]));
    }

    #[test]
    fn a_short_output_stops_the_plan_with_the_items_done() {
        let mut output = vec![0_u8; 65_536];
        let stopped = guard()
            .launch_on_host(&plan(65_537), &mut output, 1, |_, _| {})
            .expect_err("one element is missing");
        assert_eq!(stopped.items_done, 32_768);
        let missing = HostError::OutputTooShort { end: 65_537, needed: 65_537, available: 65_536 };
        assert_eq!(stopped.source, missing);
    }

    #[test]
    fn a_panic_in_a_kernel_is_an_error_with_its_message() {
        let mut output = vec![0_u8; 10];
        let kernel = |item: u64, _: &mut [u8]| assert!(item < 7, "item {item} is bad");
        let stopped = guard()
            .launch_on_host(&plan(10), &mut output, 1, kernel)
            .expect_err("the kernel panics");
        assert!(stopped.source.to_string().contains("is bad"));
    }
}
