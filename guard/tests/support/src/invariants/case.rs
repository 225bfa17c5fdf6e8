//! The inputs of a plan, and what naive arithmetic expects of it.

use std::collections::BTreeSet;

use gridguard::{
    Axis, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Plan, Rule, Strategy,
    Violations,
};
use proptest::strategy::BoxedStrategy;

use super::bytes::{Bytes, from_bytes};
use super::generate::{Batch, Preference, batch, device, kernel, local_bytes, preference, request};
use super::oracle;

/// The inputs of a plan.
#[derive(Clone, Debug)]
pub struct Case {
    /// The launch of all items.
    pub request: LaunchRequest,
    /// The layout of the items along an axis.
    pub batch: Batch,
    /// What the caller prefers.
    pub preference: Preference,
    /// The limits of the device.
    pub device: DeviceLimits,
    /// The limits of the kernel.
    pub kernel: KernelLimits,
}

/// Cases, most of them legal or splittable.
pub fn cases() -> BoxedStrategy<Case> {
    from_bytes(case)
}

/// Makes a case from bytes.
pub fn case(from: &mut Bytes<'_>) -> Case {
    let (mut request, batch, preference) = (request(from), batch(from), preference(from));
    let (mut device, mut kernel) = (device(from), kernel(from));
    let (covers, fits) = (!from.one_in(20), !from.one_in(3));
    if covers && let Ok(blocks) = u64::try_from(batch.blocks(batch.items)) {
        request.grid = request.grid.with(batch.axis, blocks);
    }
    if fits {
        // Only the batch axis can exceed a limit.
        let beside = request.cluster.filter(|cluster| (1..=8).contains(&cluster.volume()));
        request.cluster = beside;
        let along = request.grid.along(batch.axis);
        request.grid = beside.unwrap_or(Dim3::ONE).with(batch.axis, along);
        request.block = Dim3::new(32, 1, 1);
        request.dynamic_shared_bytes = 0;
        device.max_block = device.max_block.with(Axis::X, 1024);
        device.max_threads_per_block = 1024;
    } else {
        kernel.local_bytes_per_thread = local_bytes(from);
    }
    Case { request, batch, preference, device, kernel }
}

impl Case {
    /// The limits of the kernel on the device.
    #[must_use]
    pub fn limits(&self) -> LaunchLimits {
        LaunchLimits::new(self.device.clone(), self.kernel.clone())
    }

    /// The planner's result.
    ///
    /// # Errors
    ///
    /// The violations that no split avoids.
    pub fn plan(&self, limits: &LaunchLimits) -> Result<Plan, Violations> {
        let batch = self.batch.declared();
        Plan::new(&self.request, Some(&batch), limits, self.preference.choice())
    }

    /// Whether the grid has exactly the blocks of all items.
    pub(super) fn covers(&self) -> bool {
        let blocks = self.request.grid.along(self.batch.axis);
        self.batch.blocks(self.batch.items) == u128::from(blocks)
    }

    /// The rules that the unsplit launch breaks.
    pub(super) fn broken(&self) -> BTreeSet<Rule> {
        oracle::broken(&self.request, &self.device, &self.kernel)
    }

    /// The most items per launch that the caller allows; no limit for a single launch.
    pub(super) fn wanted(&self) -> u64 {
        match (self.preference.strategy, self.preference.most_items) {
            (Some(Strategy::Whole | Strategy::Folded | Strategy::Shifted), _)
            | (_, None | Some(0)) => u64::MAX,
            (_, Some(most)) => most,
        }
    }

    /// Whether the unsplit launch is legal and within the caller's preference.
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

    /// The request with the batch axis folded into x, where the batch allows it: one launch, and no
    /// cluster across the folded axis.
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

    /// Whether the only violation is the size of the batch axis.
    pub(super) fn only_the_axis_overflows(&self) -> bool {
        let axis_alone = match self.batch.axis {
            Axis::X => Rule::GridDimX,
            Axis::Y => Rule::GridDimY,
            Axis::Z => Rule::GridDimZ,
        };
        self.broken().into_iter().all(|rule| rule == axis_alone)
    }

    /// The same request with `grid`.
    pub(super) fn with_grid(&self, grid: [u32; 3]) -> LaunchRequest {
        self.request.grid(grid.into())
    }
}
