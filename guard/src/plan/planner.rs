//! Turns a request into launches that are all legal: whole, folded or chunked.

use core::num::NonZeroU64;

use crate::dim::Axis;
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::validate::{ValidLaunch, explain, judge};
use crate::launch::violation::{Owner, Remedy, Violation, Violations};
use crate::limits::LaunchLimits;
use crate::plan::batch::{BatchAxis, Share};
use crate::plan::choice::{Choice, Strategy};
use crate::plan::chunk::Chunks;
use crate::plan::explain::{
    batch_mismatch, explain_whole, fold_refused, fold_unavailable, judge_empty,
};
use crate::plan::launches::Plan;

impl Plan {
    /// Plans `request`, whose independent items `batch` declares, under `limits`.
    ///
    /// A batch of zero items makes an empty plan.
    ///
    /// # Errors
    ///
    /// The violations that no split can mend, or those of the whole launch together with the
    /// reason why it cannot be split.
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
        if batch.blocks(batch.items()) != Some(request.grid.along(batch.axis())) {
            return Err(batch_mismatch(request, batch));
        }
        if batch.items() == 0 {
            return Self::empty(request, batch, limits);
        }
        let judged = judge(request, limits);
        let caps = Caps::new(batch, choice);
        // Whoever insists on one launch has no use for a cap on chunks.
        let insists = matches!(choice.strategy, Some(Strategy::Whole | Strategy::Folded));
        let fits = batch.items() <= if insists { caps.declared } else { caps.all };
        if let Ok(launch) = judged
            && fits
            && choice.strategy != Some(Strategy::Folded)
        {
            let whole = Chunks::balanced(batch.items(), batch.items(), 1);
            return Ok(build(Strategy::Whole, whole, Some(batch), launch));
        }
        let broken = judged.err().unwrap_or(RuleSet::EMPTY);
        let mendable = Rule::grid_dim(batch.axis());
        let whole_only = choice.strategy == Some(Strategy::Whole);
        if !broken.without(mendable).is_empty() || whole_only {
            return Err(explain_whole(request, Some(batch), limits));
        }
        if fits
            && choice.allows(Strategy::Folded)
            && let Some(plan) = folded(request, batch, limits)
        {
            return Ok(plan);
        }
        if choice.allows(Strategy::Chunked) {
            return chunked(request, batch, limits, caps);
        }
        Err(fold_refused(request, batch, limits))
    }

    #[inline]
    fn without_batch(
        request: &LaunchRequest,
        limits: &LaunchLimits,
        choice: Choice,
    ) -> Result<Self, Violations> {
        let judged = judge(request, limits);
        let folds = choice.strategy == Some(Strategy::Folded);
        if let Ok(launch) = judged
            && !folds
        {
            return Ok(build(Strategy::Whole, Chunks::balanced(1, 1, 1), None, launch));
        }
        let mut violations = explain(request, limits, judged.err().unwrap_or(RuleSet::EMPTY));
        if folds {
            violations.push(fold_unavailable());
        }
        Err(violations)
    }

    /// No launch at all.
    #[cold]
    fn empty(
        request: &LaunchRequest,
        batch: &BatchAxis,
        limits: &LaunchLimits,
    ) -> Result<Self, Violations> {
        let (one, broken) = judge_empty(request, batch, limits);
        let none = Chunks::balanced(0, 1, 1);
        let legal = LaunchRequest { grid: request.grid.with(batch.axis(), 1), ..*request };
        match ValidLaunch::unchecked(&legal, limits) {
            Some(launch) if broken.is_empty() => {
                Ok(build(Strategy::Whole, none, Some(batch), launch))
            }
            _ => Err(explain(&one, limits, broken)),
        }
    }
}

/// The most items of one launch, by each reason.
#[derive(Clone, Copy)]
struct Caps {
    /// By index width, workspace and the chooser together.
    all: u64,
    /// By index width and workspace.
    declared: u64,
}

impl Caps {
    fn new(batch: &BatchAxis, choice: Choice) -> Self {
        let declared = batch.index_cap().min(batch.workspace_cap());
        let chosen = choice.max_items.map_or(u64::MAX, NonZeroU64::get);
        Self { all: declared.min(chosen), declared }
    }
}

#[inline]
fn build(
    strategy: Strategy,
    chunks: Chunks,
    batch: Option<&BatchAxis>,
    launch: ValidLaunch,
) -> Plan {
    let share = batch.map_or(Share::ONE, BatchAxis::share);
    let axis = batch.map_or(Axis::X, BatchAxis::axis);
    Plan { chunks, launch, share, axis, strategy }
}

fn folded(request: &LaunchRequest, batch: &BatchAxis, limits: &LaunchLimits) -> Option<Plan> {
    let cluster = request.cluster_with(limits.kernel());
    let request = batch.fold(request, cluster)?;
    let launch = judge(&request, limits).ok()?;
    let one = Chunks::balanced(batch.items(), batch.items(), 1);
    Some(build(Strategy::Folded, one, Some(batch), launch))
}

fn chunked(
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
    caps: Caps,
) -> Result<Plan, Violations> {
    let axis = batch.axis();
    let refuse = |rule, requested: u128, limit, owner, remedy| {
        let mut violations = explain_whole(request, Some(batch), limits);
        violations.push(Violation { rule, axis: None, requested, limit, owner, remedy });
        Err(violations)
    };
    let cap = caps.all.min(batch.items_in(limits.ceilings().grid.along(axis)));
    if caps.declared == 0 {
        // Not even one item fits; the whole launch's violations say so.
        return Err(explain_whole(request, Some(batch), limits));
    }
    if request.cooperative {
        let launches = batch.items().div_ceil(cap.max(1));
        let owner = Owner::CooperativeLaunch;
        return refuse(Rule::SplitCooperative, launches.into(), 1, owner, Remedy::ShrinkGrid);
    }
    let one_item = batch.blocks(1).unwrap_or(u64::MAX);
    let blocks_limit = limits.ceilings().grid.along(axis);
    if one_item > blocks_limit {
        let owner = Owner::Device(limits.device().name.clone());
        let mut violations = explain_whole(request, Some(batch), limits);
        violations.push(Violation {
            rule: Rule::SplitItem,
            axis: Some(axis),
            requested: one_item.into(),
            limit: blocks_limit,
            owner,
            remedy: Remedy::FewerBlocksPerItem,
        });
        return Err(violations);
    }
    let cluster = request.cluster_with(limits.kernel());
    let along = cluster.map_or(1, |cluster| cluster.along(axis));
    let plain_unit = batch.unit().unwrap_or(u64::MAX);
    let unit = batch.cluster_unit(along).unwrap_or(u64::MAX);
    if cap < unit {
        let remedy = Remedy::ChunkUnit { items: unit };
        let (rule, owner) = match cluster {
            Some(cluster) if cap >= plain_unit => (Rule::SplitCluster, Owner::Cluster(cluster)),
            _ => (Rule::SplitAlignment, Owner::Batch),
        };
        return refuse(rule, unit.into(), cap, owner, remedy);
    }
    let chunks = Chunks::balanced(batch.items(), cap, unit);
    // Narrowing and the final word: the largest launch goes through validation like any other.
    let blocks = batch.blocks(chunks.largest()).unwrap_or(u64::MAX);
    let largest = LaunchRequest { grid: request.grid.with(axis, blocks), ..*request };
    match judge(&largest, limits) {
        Ok(launch) => Ok(build(Strategy::Chunked, chunks, Some(batch), launch)),
        Err(broken) => Err(explain(&largest, limits, broken)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Dim3;
    use crate::limits::{DeviceLimits, KernelLimits};

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

    fn rules(violations: &Violations) -> Vec<&'static str> {
        violations.iter().map(|violation| violation.rule.id()).collect()
    }

    #[test]
    fn an_empty_batch_is_an_empty_plan() {
        let batch = BatchAxis::new(Axis::Y, 0);
        let plan = Plan::new(&on_y(0), Some(&batch), &limits(), Choice::AUTOMATIC).expect("empty");
        assert!(plan.is_empty());
        assert_eq!(plan.launches().count(), 0);
    }

    #[test]
    fn an_empty_batch_with_a_wrong_block_is_still_wrong() {
        let batch = BatchAxis::new(Axis::Y, 0);
        let mut request = on_y(0);
        request.block = Dim3::new(2048, 1, 1);
        let violations = Plan::new(&request, Some(&batch), &limits(), Choice::AUTOMATIC)
            .expect_err("2,048 threads");
        assert_eq!(rules(&violations), ["block-dim-x", "threads-per-block"]);
    }

    #[test]
    fn a_zero_axis_without_a_batch_is_a_violation() {
        let violations =
            Plan::new(&on_y(0), None, &limits(), Choice::AUTOMATIC).expect_err("zero grid");
        assert_eq!(rules(&violations), ["grid-dim-zero"]);
    }

    #[test]
    fn a_declared_fold_goes_before_chunks() {
        let batch = BatchAxis::new(Axis::Y, 76_800).foldable();
        let plan =
            Plan::new(&on_y(76_800), Some(&batch), &limits(), Choice::AUTOMATIC).expect("folds");
        assert_eq!(plan.strategy(), Strategy::Folded);
        let grids: Vec<_> = plan.launches().map(|one| one.launch.grid()).collect();
        assert_eq!(grids, [[76_800, 1, 1]]);
    }

    #[test]
    fn a_chosen_strategy_is_refused_rather_than_replaced() {
        let batch = BatchAxis::new(Axis::Y, 76_800);
        let choose = |strategy| Choice::AUTOMATIC.strategy(strategy);
        let folded = Plan::new(&on_y(76_800), Some(&batch), &limits(), choose(Strategy::Folded));
        assert_eq!(rules(&folded.expect_err("no flat layout")), ["grid-dim-y", "fold-unavailable"]);
        let whole = Plan::new(&on_y(76_800), Some(&batch), &limits(), choose(Strategy::Whole));
        assert_eq!(rules(&whole.expect_err("too large")), ["grid-dim-y"]);
    }

    #[test]
    fn a_cooperative_launch_is_not_split() {
        let batch = BatchAxis::new(Axis::Y, 76_800);
        let request = on_y(76_800).cooperative();
        let violations = Plan::new(&request, Some(&batch), &limits(), Choice::AUTOMATIC)
            .expect_err("one barrier");
        assert_eq!(rules(&violations), ["grid-dim-y", "split-cooperative"]);
    }

    #[test]
    fn a_cluster_is_never_cut() {
        let batch = BatchAxis::new(Axis::Y, 16_384).blocks_per_item(6);
        let request = on_y(98_304).cluster(Dim3::new(1, 4, 1));
        let plan =
            Plan::new(&request, Some(&batch), &limits(), Choice::AUTOMATIC).expect("splits evenly");
        assert!(plan.launches().all(|one| one.launch.grid()[1] % 4 == 0));
        let violations = Plan::new(&request, Some(&batch), &limits(), Choice::at_most(1))
            .expect_err("six blocks cut a cluster of four");
        assert_eq!(rules(&violations), ["grid-dim-y", "split-cluster"]);
    }

    #[test]
    fn an_alignment_above_the_cap_is_refused() {
        let batch = BatchAxis::new(Axis::Y, 76_800).align(70_000);
        let violations = Plan::new(&on_y(76_800), Some(&batch), &limits(), Choice::AUTOMATIC)
            .expect_err("no chunk fits");
        assert_eq!(rules(&violations), ["grid-dim-y", "split-alignment"]);
    }

    #[test]
    fn index_width_and_workspace_cap_the_chunks() {
        let batch = BatchAxis::new(Axis::Y, 4096).index_32_bits(1 << 20);
        let plan =
            Plan::new(&on_y(4096), Some(&batch), &limits(), Choice::AUTOMATIC).expect("splits");
        assert_eq!((plan.len(), plan.largest_chunk()), (3, 1366));
        let batch = BatchAxis::new(Axis::Y, 4096).workspace(1 << 20, 1 << 30);
        let plan =
            Plan::new(&on_y(4096), Some(&batch), &limits(), Choice::AUTOMATIC).expect("splits");
        assert_eq!((plan.len(), plan.largest_chunk()), (4, 1024));
    }

    #[test]
    fn an_item_too_large_for_any_chunk_says_so() {
        let batch = BatchAxis::new(Axis::Y, 3).index_32_bits(1 << 31);
        let violations = Plan::new(&on_y(3), Some(&batch), &limits(), Choice::AUTOMATIC)
            .expect_err("one item wraps the index");
        assert_eq!(rules(&violations), ["index-width"]);
        assert!(violations.to_string().ends_with("compile the kernel with 64-bit indices"));
    }

    #[test]
    fn other_violations_are_not_split_away() {
        let batch = BatchAxis::new(Axis::Y, 76_800);
        let mut request = on_y(76_800);
        request.grid.z = 65_536;
        let violations = Plan::new(&request, Some(&batch), &limits(), Choice::AUTOMATIC)
            .expect_err("z overflows too");
        assert_eq!(rules(&violations), ["grid-dim-y", "grid-dim-z"]);
    }

    #[test]
    fn a_batch_that_does_not_cover_the_grid_is_refused() {
        let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(4);
        let violations = Plan::new(&on_y(76_800), Some(&batch), &limits(), Choice::AUTOMATIC)
            .expect_err("61,440 blocks are declared");
        assert_eq!(
            violations.to_string(),
            "grid.y is 76800 blocks, expected are 61440 (batch): \
             make the grid cover the 15360 items that the batch declares"
        );
    }
}
