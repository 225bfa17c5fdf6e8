//! Opens a problem on a device or on the host.

use std::sync::Arc;

use gridguard_autotune::{MeasureFailure, ProblemMeasurer};

use super::device::OnDevice;
use super::host::OnHost;
use super::problem::UntunedProblem;
use super::workload::UntunedWorkload;
use crate::measure::workload::LocalBench;

/// The measurer of a problem, on the device of `bench` or on the host.
pub(crate) fn open(
    problem: UntunedProblem,
    bench: &LocalBench,
) -> Result<Box<dyn ProblemMeasurer>, MeasureFailure> {
    let guard = bench.guard();
    match bench.stream()? {
        Some(stream) => {
            let back_end = OnDevice::new(problem, guard, Arc::clone(&stream))?;
            bench.measurer(UntunedWorkload::new(problem, back_end), Some(stream))
        }
        None => {
            let back_end = OnHost::new(problem, guard);
            bench.measurer(UntunedWorkload::new(problem, back_end), None)
        }
    }
}
