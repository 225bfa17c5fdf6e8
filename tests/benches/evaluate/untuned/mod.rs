//! Problems with untuned defaults: launch parameters that matter, and passes whose fastest chunk stays in the cache.

mod device;
pub(crate) mod host;
mod problem;
pub(crate) mod workload;

use std::sync::Arc;

use gridguard::Guard;
use gridguard_autotune::{MeasureFailure, Measurer};

use self::device::OnDevice;
use self::host::OnHost;
pub(crate) use self::problem::UntunedProblem;
use self::workload::UntunedWorkload;
use super::workload::LocalBench;

impl UntunedProblem {
    /// The measurer of this problem on the device of `bench`, or on the host if it has none.
    pub(crate) fn open(
        self,
        bench: &LocalBench,
        guard: &Arc<Guard>,
    ) -> Result<Box<dyn Measurer>, MeasureFailure> {
        match bench.stream()? {
            Some(stream) => {
                let back_end = OnDevice::new(self, guard, Arc::clone(&stream))?;
                bench.measurer(UntunedWorkload::new(self, back_end), Some(stream))
            }
            None => {
                let back_end = OnHost::new(self, guard);
                bench.measurer(UntunedWorkload::new(self, back_end), None)
            }
        }
    }
}
