//! Problems with untuned defaults: launch parameters that matter, and passes whose fastest chunk stays in the cache.

mod device;
mod problem;

use std::sync::Arc;

use gridguard::Guard;
use gridguard_autotune::{FailureKind, MeasureFailure, Measurer};

use self::device::OnDevice;
pub(crate) use self::problem::UntunedProblem;
use super::workload::LocalBench;

impl UntunedProblem {
    /// The measurer of this problem on the device of `bench`.
    pub(crate) fn open(
        self,
        bench: &LocalBench,
        guard: &Arc<Guard>,
    ) -> Result<Box<dyn Measurer>, MeasureFailure> {
        let none = || MeasureFailure::new(FailureKind::Launch, "it needs a device");
        let stream = bench.stream()?.ok_or_else(none)?;
        bench.measurer(OnDevice::new(self, guard, Arc::clone(&stream))?, Some(stream))
    }
}
