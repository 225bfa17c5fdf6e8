//! Everything that a plan is made of, and what naive arithmetic says of it.

use std::collections::BTreeSet;

use gridguard::{
    Axis, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Plan, Rule,
    Strategy as Way, Violations,
};
use proptest::prelude::*;

use crate::generate::{Batch, Preference, batch, device, kernel, preference, request};
use crate::oracle;

/// Everything that a plan is made of.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) request: LaunchRequest,
    pub(crate) batch: Batch,
    pub(crate) preference: Preference,
    pub(crate) device: DeviceLimits,
    pub(crate) kernel: KernelLimits,
}

pub(crate) fn case() -> BoxedStrategy<Case> {
    let parts = (request(), batch(), preference(), device(), kernel());
    (parts, prop::bool::weighted(0.95), prop::bool::weighted(0.7))
        .prop_map(|((mut request, batch, preference, mut device, kernel), covers, fits)| {
            if covers && let Ok(blocks) = u64::try_from(batch.blocks(batch.items)) {
                request.grid = request.grid.with(batch.axis, blocks);
            }
            if fits {
                // Nothing but the batch axis stands in the way.
                let beside = request.cluster.filter(|cluster| (1..=8).contains(&cluster.volume()));
                request.cluster = beside;
                let along = request.grid.along(batch.axis);
                request.grid = beside.unwrap_or(Dim3::ONE).with(batch.axis, along);
                request.block = Dim3::new(32, 1, 1);
                request.dynamic_shared_bytes = 0;
                device.max_block = device.max_block.with(Axis::X, 1024);
                device.max_threads_per_block = 1024;
            }
            Case { request, batch, preference, device, kernel }
        })
        .boxed()
}

impl Case {
    pub(crate) fn limits(&self) -> LaunchLimits {
        LaunchLimits::new(self.device.clone(), self.kernel.clone())
    }

    pub(crate) fn plan(&self, limits: &LaunchLimits) -> Result<Plan, Violations> {
        let batch = self.batch.declared();
        Plan::new(&self.request, Some(&batch), limits, self.preference.choice())
    }

    pub(crate) fn covers(&self) -> bool {
        let blocks = self.request.grid.along(self.batch.axis);
        self.batch.blocks(self.batch.items) == u128::from(blocks)
    }

    pub(crate) fn broken(&self) -> BTreeSet<Rule> {
        oracle::broken(&self.request, &self.device, &self.kernel)
    }

    /// The most items of a launch that the caller wants; whoever insists on one launch wants all.
    pub(crate) fn wanted(&self) -> u64 {
        match (self.preference.way, self.preference.most_items) {
            (Some(Way::Whole | Way::Folded), _) | (_, None | Some(0)) => u64::MAX,
            (_, Some(most)) => most,
        }
    }

    /// Whether one launch as requested is legal and wanted.
    pub(crate) fn whole_is_right(&self) -> bool {
        let items = self.batch.items;
        self.broken().is_empty() && self.batch.holds(items) && items <= self.wanted()
    }

    /// The unit of chunks, in items.
    pub(crate) fn unit(&self) -> Option<u64> {
        let cluster = self.request.named_cluster().or(self.kernel.required_cluster);
        let along = cluster.map_or(1, |cluster| cluster.along(self.batch.axis));
        self.batch.unit(along)
    }

    /// The most blocks along the batch's axis.
    pub(crate) fn axis_limit(&self) -> u64 {
        let limit = self.device.max_grid.along(self.batch.axis);
        limit.min(u32::MAX.into())
    }

    /// The fewest launches of whole units.
    pub(crate) fn fewest_chunks(&self) -> u128 {
        let unit = u128::from(self.unit().expect("it is chunked"));
        let most = self.batch.most_items(self.axis_limit()).min(self.wanted().into());
        u128::from(self.batch.items).div_ceil(unit).div_ceil(most / unit)
    }

    /// The smallest chunk, where one is legal.
    pub(crate) fn smallest_chunk(&self) -> Option<u64> {
        let unit = self.unit()?;
        let limit = self.axis_limit();
        let items = self.batch.items;
        let fits = self.batch.blocks(unit) <= limit.into();
        (fits && self.batch.holds(unit) && unit <= self.wanted() && unit <= items).then_some(unit)
    }

    /// The request with the batch axis moved to x, where a kernel with a flat layout gives the same
    /// answer: in one launch, with no cluster across the blocks that move.
    pub(crate) fn folded(&self) -> Option<LaunchRequest> {
        let Batch { axis, items, foldable, .. } = self.batch;
        let cluster = self.request.named_cluster().or(self.kernel.required_cluster);
        let cluster = cluster.unwrap_or(Dim3::ONE);
        let may_move = foldable && axis != Axis::X && cluster.x == 1 && cluster.along(axis) == 1;
        let one_launch = self.batch.holds(items) && items <= self.wanted();
        let x = u128::from(self.request.grid.x) * self.batch.blocks(items);
        let x = u64::try_from(x).ok()?;
        let grid = self.request.grid.with(axis, 1).with(Axis::X, x);
        let folded = self.request.grid(grid);
        let legal = oracle::broken(&folded, &self.device, &self.kernel).is_empty();
        (may_move && one_launch && legal).then_some(folded)
    }

    /// Whether nothing is wrong but the length of the batch axis.
    pub(crate) fn only_the_axis_overflows(&self) -> bool {
        let axis_alone = match self.batch.axis {
            Axis::X => Rule::GridDimX,
            Axis::Y => Rule::GridDimY,
            Axis::Z => Rule::GridDimZ,
        };
        self.broken().into_iter().all(|rule| rule == axis_alone)
    }

    /// The same request for `grid` instead.
    pub(crate) fn with_grid(&self, grid: [u32; 3]) -> LaunchRequest {
        self.request.grid(grid.into())
    }
}
