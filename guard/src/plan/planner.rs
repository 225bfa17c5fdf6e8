//! Plans a request as one launch, folded into x, in chunks, or as launches of a rewritten kernel. Each launch is
//! validated.

use crate::launch::explain::violations;
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::{check, check_along, validate};
use crate::launch::violation::{Owner, Remedy, Violation, Violations};
use crate::limits::launch::LaunchLimits;
use crate::limits::occupancy::OccupancyLimits;
use crate::plan::batch::{BatchAxis, BlockRatio};
use crate::plan::choice::{Choice, Strategy};
use crate::plan::chunks::Chunks;
use crate::plan::explain::{
    batch_mismatch, check_empty, explain, explain_strategy, explain_with, reason, split_cooperative,
};
use crate::plan::launches::Plan;
use crate::plan::rewritten::rewritten;

impl Plan {
    /// Plans `request` under `limits`; `batch` declares its independent items.
    ///
    /// A batch of zero items makes an empty plan.
    ///
    /// # Errors
    ///
    /// The violations that splitting cannot fix, or all violations of the unsplit launch with the reason why it
    /// cannot be split.
    #[inline]
    pub fn new(
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        limits: &LaunchLimits,
        choice: Choice,
    ) -> Result<Self, Violations> {
        let Some(batch) = batch else {
            return Self::without_batch(request, limits, choice);
        };
        if !batch.covers(request) {
            return Err(batch_mismatch(request, batch));
        }
        if batch.items() == 0 {
            return Self::empty(request, batch, limits);
        }
        let checked = check_along(batch.axis(), request, limits);
        // A cap on chunks does not apply if all items are in one launch, or each part sees the whole batch.
        let cap = match choice.allows(Strategy::Chunked) {
            true => batch.item_cap().min(choice.most_items()),
            false => batch.item_cap(),
        };
        let fits = batch.items() <= cap;
        if let Ok(launch) = checked
            && fits
            && choice.allows_original()
        {
            return Ok(build(Strategy::Whole, Chunks::one(batch.items()), Some(batch), launch));
        }
        let broken = checked.err().unwrap_or(RuleSet::EMPTY);
        // Chunks of a batch begin at block 0.
        let unfixable = broken.without(Rule::grid_dim(batch.axis())).without(Rule::IndexWrap);
        let whole_only = choice.strategy == Some(Strategy::Whole);
        let rewritten = || rewritten(request, Some(batch), limits, choice, broken);
        if !unfixable.is_empty() || whole_only {
            return rewritten().unwrap_or_else(|| Err(explain(request, Some(batch), limits)));
        }
        if fits
            && batch.is_foldable()
            && choice.allows(Strategy::Folded)
            && let Some(plan) = folded(request, batch, limits)
        {
            return Ok(plan);
        }
        let is_contradicted =
            limits.forms().is_some_and(|forms| forms.contradict_batch_along(batch.axis()));
        if is_contradicted
            && choice.strategy.is_none()
            && let Some(Ok(plan)) = rewritten()
        {
            return Ok(plan);
        }
        if choice.allows(Strategy::Chunked) {
            return match chunked(request, batch, limits, cap) {
                Err(violations) => rewritten().unwrap_or(Err(violations)),
                plan => plan,
            };
        }
        rewritten()
            .unwrap_or_else(|| Err(explain_strategy(request, Some(batch), limits, choice.strategy)))
    }

    #[inline]
    fn without_batch(
        request: &LaunchRequest,
        limits: &LaunchLimits,
        choice: Choice,
    ) -> Result<Self, Violations> {
        let broken = match check(request, limits) {
            Ok(launch) if choice.allows_original() => {
                return Ok(build(Strategy::Whole, Chunks::one(1), None, launch));
            }
            checked => checked.err().unwrap_or(RuleSet::EMPTY),
        };
        rewritten(request, None, limits, choice, broken)
            .unwrap_or_else(|| Err(explain_strategy(request, None, limits, choice.strategy)))
    }

    /// A plan without launches.
    #[cold]
    fn empty(
        request: &LaunchRequest,
        batch: &BatchAxis,
        limits: &LaunchLimits,
    ) -> Result<Self, Violations> {
        let (one_item, broken) = check_empty(request, batch, limits);
        let legal = LaunchRequest { grid: request.grid.with(batch.axis(), 1), ..*request };
        match ValidLaunch::unchecked(&legal, limits) {
            Some(launch) if broken.is_empty() => {
                Ok(build(Strategy::Whole, Chunks::one(0), Some(batch), launch))
            }
            _ => Err(violations(&one_item, limits, &OccupancyLimits::UNKNOWN, broken)),
        }
    }
}

#[inline]
fn build(
    strategy: Strategy,
    chunks: Chunks,
    batch: Option<&BatchAxis>,
    launch: ValidLaunch,
) -> Plan {
    let share = batch.map_or(BlockRatio::ONE, BatchAxis::share);
    let axis = batch.map(BatchAxis::axis);
    Plan { chunks, launch, share, axis, strategy, whole: None }
}

fn folded(request: &LaunchRequest, batch: &BatchAxis, limits: &LaunchLimits) -> Option<Plan> {
    let request = batch.fold(request, limits.kernel())?;
    let launch = check(&request, limits).ok()?;
    Some(build(Strategy::Folded, Chunks::one(batch.items()), Some(batch), launch))
}

fn chunked(
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
    cap: u64,
) -> Result<Plan, Violations> {
    let axis = batch.axis();
    let reject = |reason| Err(explain_with(request, Some(batch), limits, reason));
    let blocks_limit = limits.grid_along(axis);
    let by_index = batch.items_by_index(request, limits);
    let cap = cap.min(batch.items_in(blocks_limit)).min(by_index);
    if batch.item_cap().min(by_index) == 0 {
        // Not even one item fits, which the violations of the unsplit launch report.
        return Err(explain(request, Some(batch), limits));
    }
    if request.cooperative {
        return reject(split_cooperative(batch.items().div_ceil(cap.max(1))));
    }
    let one_item = batch.blocks(1).unwrap_or(u64::MAX);
    if one_item > blocks_limit {
        let owner = Owner::Device(limits.device().name.clone());
        let remedy = Remedy::FewerBlocksPerItem;
        let too_large = reason(Rule::SplitItem, one_item.into(), blocks_limit, owner, remedy);
        return reject(Violation { axis: Some(axis), ..too_large });
    }
    let cluster = request.cluster_with(limits.kernel());
    let unit = batch.cluster_unit(cluster).unwrap_or(u64::MAX);
    if cap < unit {
        let (rule, owner) = match cluster {
            Some(cluster) if cap >= batch.unit().unwrap_or(u64::MAX) => {
                (Rule::SplitCluster, Owner::Cluster(cluster))
            }
            _ => (Rule::SplitAlignment, Owner::Batch),
        };
        return reject(reason(rule, unit.into(), cap, owner, Remedy::ChunkUnit { items: unit }));
    }
    let chunks = Chunks::balanced(batch.items(), cap, unit);
    // The largest launch is validated like any other, which also narrows it to 32 bits.
    let blocks = batch.blocks(chunks.largest()).unwrap_or(u64::MAX);
    let grid = request.grid.with(axis, blocks);
    let launch = match ValidLaunch::plain_with_grid(grid, request, limits) {
        Some(launch) => launch,
        None => validate(&LaunchRequest { grid, ..*request }, limits)?,
    };
    Ok(build(Strategy::Chunked, chunks, Some(batch), launch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::{Axis, Dim3};
    use crate::limits::device::DeviceLimits;
    use crate::limits::index::{IndexLimit, IndexTerm};
    use crate::limits::kernel::KernelLimits;

    fn limits() -> LaunchLimits {
        let mut device = DeviceLimits::any_device();
        device.cluster_launch = true;
        device.max_portable_cluster_blocks = 8;
        device.cooperative_launch = true;
        LaunchLimits::new(device, KernelLimits::unknown("k"))
    }

    fn on_y(blocks: u64) -> LaunchRequest {
        LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::new(128, 1, 1))
    }

    /// The plan of blocks on y, one for each item of `batch` or several.
    fn plan(blocks: u64, batch: BatchAxis, limits: &LaunchLimits) -> Plan {
        Plan::new(&on_y(blocks), Some(&batch), limits, Choice::AUTOMATIC).expect("a plan")
    }

    fn rules(violations: &Violations) -> Vec<&'static str> {
        violations.iter().map(|violation| violation.rule.id()).collect()
    }

    #[test]
    fn an_empty_batch_is_an_empty_plan() {
        let plan = plan(0, BatchAxis::new(Axis::Y, 0), &limits());
        assert!(plan.is_empty());
        assert_eq!(plan.launches().count(), 0);
    }

    #[test]
    fn an_empty_batch_with_a_wrong_block_is_rejected() {
        let batch = BatchAxis::new(Axis::Y, 0);
        let mut request = on_y(0);
        request.block = Dim3::new(2048, 1, 1);
        let violations = Plan::new(&request, Some(&batch), &limits(), Choice::AUTOMATIC)
            .expect_err("2,048 threads");
        assert_eq!(rules(&violations), ["block-dim-x", "threads-per-block"]);
    }

    #[test]
    fn folding_is_preferred_to_chunks() {
        let plan = plan(76_800, BatchAxis::new(Axis::Y, 76_800).foldable(), &limits());
        assert_eq!(plan.strategy(), Strategy::Folded);
        let grids: Vec<_> = plan.launches().map(|one| one.launch.grid()).collect();
        assert_eq!(grids, [[76_800, 1, 1]]);
    }

    #[test]
    fn a_chosen_strategy_is_rejected_rather_than_replaced() {
        let batch = BatchAxis::new(Axis::Y, 76_800);
        let choose = |strategy| Choice::AUTOMATIC.strategy(strategy);
        let folded = Plan::new(&on_y(76_800), Some(&batch), &limits(), choose(Strategy::Folded));
        assert_eq!(rules(&folded.expect_err("no flat layout")), ["grid-dim-y", "fold-unavailable"]);
        let whole = Plan::new(&on_y(76_800), Some(&batch), &limits(), choose(Strategy::Whole));
        assert_eq!(rules(&whole.expect_err("too large")), ["grid-dim-y"]);
    }

    #[test]
    fn index_width_and_workspace_cap_the_chunks() {
        let batch = BatchAxis::new(Axis::Y, 4096);
        let indexed = plan(4096, batch.index_32_bits(1 << 20), &limits());
        assert_eq!((indexed.len(), indexed.largest_chunk()), (3, 1366));
        let spacious = plan(4096, batch.workspace(1 << 20, 1 << 30), &limits());
        assert_eq!((spacious.len(), spacious.largest_chunk()), (4, 1024));
    }

    /// Limits of a kernel whose index grows by 65,536 with each block along `axis`.
    fn indexed_along(axis: usize) -> LaunchLimits {
        let term = |factor, along| {
            let grid = core::array::from_fn(|one| u8::from(along && one == axis));
            IndexTerm { factor, grid, block: [0; 3] }
        };
        let terms = vec![term(65_536, true), term(-65_536, false)];
        let index = vec![IndexLimit { terms, most: 2_147_483_647 }];
        let kernel = KernelLimits { index, ..limits().kernel().clone() };
        LaunchLimits::new(limits().device().clone(), kernel)
    }

    #[test]
    fn chunks_of_a_batch_stay_below_the_size_at_which_an_index_wraps() {
        let limits = indexed_along(1);
        for (blocks, launches, largest) in
            [(32_768, 1, 32_768), (32_769, 2, 16_385), (70_000, 3, 23_334)]
        {
            let plan = plan(blocks, BatchAxis::new(Axis::Y, blocks), &limits);
            assert_eq!((plan.len(), plan.largest_chunk()), (launches, largest), "{blocks}");
            assert!(plan.is_for(&limits));
        }
        // The lower of both bounds counts.
        for (elements, launches) in [(1 << 15, 2), (1 << 18, 5)] {
            let batch = BatchAxis::new(Axis::Y, 40_000).index_32_bits(elements);
            assert_eq!(plan(40_000, batch, &limits).len(), launches);
        }
        // Folded, the index along y stays 0.
        let folded = plan(40_000, BatchAxis::new(Axis::Y, 40_000).foldable(), &limits);
        assert_eq!(folded.strategy(), Strategy::Folded);
    }

    #[test]
    fn an_index_that_no_chunk_lowers_is_reported_with_its_axis() {
        let limits = indexed_along(1);
        let refused = Plan::new(&on_y(32_769), None, &limits, Choice::AUTOMATIC);
        let refused = refused.expect_err("it wraps");
        assert_eq!(rules(&refused), ["index-wrap"]);
        let request = LaunchRequest { grid: Dim3::new(40_000, 2, 1), ..on_y(2) };
        let batch = BatchAxis::new(Axis::Y, 2);
        let on_x = Plan::new(&request, Some(&batch), &indexed_along(0), Choice::AUTOMATIC);
        let on_x = on_x.expect_err("chunks along y do not help");
        assert_eq!(rules(&on_x), ["index-wrap"]);
        assert_eq!(on_x.iter().next().map(|one| one.axis), Some(Some(Axis::X)));
        let whole = Choice::AUTOMATIC.strategy(Strategy::Whole);
        let batch = BatchAxis::new(Axis::Y, 40_000);
        let whole = Plan::new(&on_y(40_000), Some(&batch), &limits, whole).expect_err("it wraps");
        assert_eq!(rules(&whole), ["index-wrap"]);
    }

    #[test]
    fn splitting_does_not_hide_other_violations() {
        let batch = BatchAxis::new(Axis::Y, 76_800);
        let mut request = on_y(76_800);
        request.grid.z = 65_536;
        let violations = Plan::new(&request, Some(&batch), &limits(), Choice::AUTOMATIC)
            .expect_err("z overflows too");
        assert_eq!(rules(&violations), ["grid-dim-y", "grid-dim-z"]);
    }
}
