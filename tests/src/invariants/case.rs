//! Everything that a plan is made of, and what naive arithmetic says of it.

use std::collections::BTreeSet;

use gridguard::{
    Axis, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Plan, Rule,
    Strategy as Way, Violations,
};
use proptest::strategy::BoxedStrategy;

use super::bytes::{Bytes, out_of_bytes};
use super::generate::{Batch, Preference, batch, device, kernel, preference, request};
use super::oracle;

/// Everything that a plan is made of.
#[derive(Clone, Debug)]
pub struct Case {
    pub(super) request: LaunchRequest,
    pub(super) batch: Batch,
    pub(super) preference: Preference,
    pub(super) device: DeviceLimits,
    pub(super) kernel: KernelLimits,
}

/// Cases, most of them legal or mendable.
pub fn cases() -> BoxedStrategy<Case> {
    out_of_bytes(case)
}

pub(super) fn case(from: &mut Bytes<'_>) -> Case {
    let (mut request, batch, preference) = (request(from), batch(from), preference(from));
    let (mut device, kernel) = (device(from), kernel(from));
    let (covers, fits) = (!from.one_in(20), !from.one_in(3));
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
}

impl Case {
    /// The limits of its kernel on its device.
    #[must_use]
    pub fn limits(&self) -> LaunchLimits {
        LaunchLimits::new(self.device.clone(), self.kernel.clone())
    }

    /// What the planner makes of it.
    ///
    /// # Errors
    ///
    /// Why it refuses.
    pub fn plan(&self, limits: &LaunchLimits) -> Result<Plan, Violations> {
        let batch = self.batch.declared();
        Plan::new(&self.request, Some(&batch), limits, self.preference.choice())
    }

    pub(super) fn covers(&self) -> bool {
        let blocks = self.request.grid.along(self.batch.axis);
        self.batch.blocks(self.batch.items) == u128::from(blocks)
    }

    pub(super) fn broken(&self) -> BTreeSet<Rule> {
        oracle::broken(&self.request, &self.device, &self.kernel)
    }

    /// The most items of a launch that the caller wants; whoever insists on one launch wants all.
    pub(super) fn wanted(&self) -> u64 {
        match (self.preference.way, self.preference.most_items) {
            (Some(Way::Whole | Way::Folded), _) | (_, None | Some(0)) => u64::MAX,
            (_, Some(most)) => most,
        }
    }

    /// Whether one launch as requested is legal and wanted.
    pub(super) fn whole_is_right(&self) -> bool {
        let items = self.batch.items;
        self.broken().is_empty() && self.batch.holds(items) && items <= self.wanted()
    }

    /// The unit of chunks, in items.
    pub(super) fn unit(&self) -> Option<u64> {
        let cluster = self.request.named_cluster().or(self.kernel.required_cluster);
        let along = cluster.map_or(1, |cluster| cluster.along(self.batch.axis));
        self.batch.unit(along)
    }

    /// The most blocks along the batch's axis.
    pub(super) fn axis_limit(&self) -> u64 {
        let limit = self.device.max_grid.along(self.batch.axis);
        limit.min(u32::MAX.into())
    }

    /// The fewest launches of whole units.
    pub(super) fn fewest_chunks(&self) -> u128 {
        let unit = u128::from(self.unit().expect("it is chunked"));
        let most = self.batch.most_items(self.axis_limit()).min(self.wanted().into());
        u128::from(self.batch.items).div_ceil(unit).div_ceil(most / unit)
    }

    /// The smallest chunk, where one is legal.
    pub(super) fn smallest_chunk(&self) -> Option<u64> {
        let unit = self.unit()?;
        let limit = self.axis_limit();
        let items = self.batch.items;
        let fits = self.batch.blocks(unit) <= limit.into();
        (fits && self.batch.holds(unit) && unit <= self.wanted() && unit <= items).then_some(unit)
    }

    /// The request with the batch axis moved to x, where a kernel with a flat layout gives the same
    /// answer: in one launch, with no cluster across the blocks that move.
    pub(super) fn folded(&self) -> Option<LaunchRequest> {
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
    pub(super) fn only_the_axis_overflows(&self) -> bool {
        let axis_alone = match self.batch.axis {
            Axis::X => Rule::GridDimX,
            Axis::Y => Rule::GridDimY,
            Axis::Z => Rule::GridDimZ,
        };
        self.broken().into_iter().all(|rule| rule == axis_alone)
    }

    /// The same request for `grid` instead.
    pub(super) fn with_grid(&self, grid: [u32; 3]) -> LaunchRequest {
        self.request.grid(grid.into())
    }
}
