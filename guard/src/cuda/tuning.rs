//! Plans a kernel's launches as the guard's profile says.

use arrayvec::ArrayVec;

use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::limits::LaunchLimits;
use crate::plan::batch::BatchAxis;
use crate::plan::launches::Plan;
use crate::profile::model::{Key, MAX_SIZES};

/// What a profile lookup needs of a kernel.
#[derive(Debug)]
pub(super) struct KernelTuning {
    key: Key,
    names: Vec<&'static str>,
    /// The first one is replaced by the items of each launch.
    sizes: Vec<u64>,
}

impl KernelTuning {
    pub(super) fn new(key: Key, items: &'static str, sizes: &[(&'static str, u64)]) -> Self {
        let (names, sizes) = [(items, 0)].iter().chain(sizes).copied().unzip();
        Self { key, names, sizes }
    }

    /// The plan that the profile of `guard` chooses; `None` where it has no entry for the shape, or
    /// its choice is not legal here, which is counted. Allocates nothing, and takes no lock but the
    /// miss log's.
    pub(super) fn plan(
        &self,
        guard: &Guard,
        request: &LaunchRequest,
        batch: &BatchAxis,
        limits: &LaunchLimits,
    ) -> Option<Plan> {
        let mut sizes = ArrayVec::<u64, MAX_SIZES>::new();
        // No entry has more sizes, so a longer shape is looked up as it is and found missing.
        let sizes = match sizes.try_extend_from_slice(&self.sizes) {
            Ok(()) => sizes.as_mut_slice(),
            Err(_) => &mut self.sizes.clone(),
        };
        if let Some(items) = sizes.first_mut() {
            *items = batch.items();
        }
        let tuned = guard.tuned(&self.key, &self.names, sizes);
        tuned.entry?;
        let plan = Plan::new(request, Some(batch), limits, tuned.choice());
        if let (Err(_), Some(profile)) = (&plan, guard.profile()) {
            profile.refused();
        }
        plan.ok()
    }
}
