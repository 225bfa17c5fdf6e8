//! Plans the launches of a rewritten kernel: parts of its grid, or all blocks flat on x.

use crate::dim::{Axis, Dim3, saturated};
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate;
use crate::launch::violation::{Owner, Remedy, Violations};
use crate::limits::launch::LaunchLimits;
use crate::plan::batch::{BatchAxis, BlockRatio};
use crate::plan::choice::{Choice, Strategy};
use crate::plan::chunks::Chunks;
use crate::plan::explain::{explain_with, fold_unavailable, reason, split_cooperative};
use crate::plan::launches::{Plan, WholeGrid};
use crate::plan::parts::GridParts;

/// The plan with the fewest launches of a form of the kernel. If both forms need the same number, the shifted form
/// wins.
///
/// Launches in clusters are only shifted, because a flat grid would form other clusters.
///
/// `None` if the kernel has no forms, `choice` has another strategy, the batch exceeds its index width or workspace, a
/// rule other than the grid's size is `broken`, or an axis has more than 2^32 - 1 blocks.
#[cold]
pub(crate) fn rewritten(
    request: &LaunchRequest,
    batch: Option<&BatchAxis>,
    limits: &LaunchLimits,
    choice: Choice,
    broken: RuleSet,
) -> Option<Result<Plan, Violations>> {
    let forms = limits.forms()?;
    let is_fixable = Axis::ALL
        .into_iter()
        .fold(broken, |broken, axis| broken.without(Rule::grid_dim(axis)))
        .is_empty();
    let cluster = request.cluster_with(limits.kernel()).unwrap_or(Dim3::ONE);
    let is_batch_within = |batch: &BatchAxis| batch.item_cap() >= batch.items();
    let is_within = batch.is_none_or(is_batch_within) && request.grid.narrow().is_some();
    if !is_fixable || !is_within {
        return None;
    }
    let grid = Grid { request, batch, cluster, most: most_blocks(request, batch, choice) };
    let cluster_blocks = cluster.volume();
    if u128::from(grid.most) < cluster_blocks {
        let (owner, items) = (Owner::Cluster(cluster), saturated(cluster_blocks));
        let remedy = Remedy::ChunkUnit { items };
        let cut = reason(Rule::SplitCluster, cluster_blocks, grid.most, owner, remedy);
        return Some(Err(explain_with(request, batch, limits, cut)));
    }
    let shifted = || grid.shifted(&forms.shifted);
    let folded = || grid.folded(&forms.folded);
    let plan = match choice.strategy {
        Some(Strategy::Whole | Strategy::Chunked) => return None,
        Some(Strategy::Shifted) => shifted(),
        Some(Strategy::Folded) => folded()
            .unwrap_or_else(|| Err(explain_with(request, batch, limits, fold_unavailable()))),
        None => match (shifted(), folded()) {
            (Ok(shifted), Some(Ok(folded))) if folded.len() < shifted.len() => Ok(folded),
            (Err(_), Some(Ok(folded))) => Ok(folded),
            (shifted, _) => shifted,
        },
    };
    Some(match plan {
        Ok(plan) if request.cooperative && plan.len() > 1 => {
            Err(explain_with(request, batch, limits, split_cooperative(plan.len())))
        }
        plan => plan,
    })
}

/// The most blocks of a launch that `choice` allows: the blocks of as many items, or without a batch as many blocks.
fn most_blocks(request: &LaunchRequest, batch: Option<&BatchAxis>, choice: Choice) -> u64 {
    let most = choice.most_items();
    let Some(batch) = batch else { return most };
    let along = batch.blocks(most.min(batch.items())).unwrap_or(u64::MAX);
    saturated(request.grid.with(batch.axis(), along).volume()).max(1)
}

/// A grid that is launched in parts of at most `most` blocks.
struct Grid<'a> {
    request: &'a LaunchRequest,
    batch: Option<&'a BatchAxis>,
    /// One block for a launch without clusters.
    cluster: Dim3,
    /// At least the blocks of a cluster.
    most: u64,
}

impl Grid<'_> {
    fn shifted(&self, limits: &LaunchLimits) -> Result<Plan, Violations> {
        let (grid, cluster) = (self.request.grid, self.cluster);
        let of_whole_clusters = |axis, blocks: u64| {
            let unit = cluster.along(axis).max(1);
            (blocks / unit).max(1) * unit
        };
        let mut largest = grid;
        for axis in Axis::ALL {
            let most = limits.thresholds().grid.along(axis).min(grid.along(axis));
            largest = largest.with(axis, of_whole_clusters(axis, most));
        }
        // Layers of z stay whole for as long as possible, and rows of x longest.
        for axis in [Axis::Z, Axis::Y, Axis::X] {
            let others = saturated(largest.with(axis, 1).volume());
            let most = self.most / others.max(1);
            let most = of_whole_clusters(axis, most.min(largest.along(axis)));
            largest = largest.with(axis, most);
        }
        self.plan(Strategy::Shifted, GridParts::new(grid, largest, cluster), limits)
    }

    /// `None` in clusters, and for more than [`MOST_FOLDED_BLOCKS`].
    fn folded(&self, limits: &LaunchLimits) -> Option<Result<Plan, Violations>> {
        let blocks = u64::try_from(self.request.grid.volume()).ok();
        let blocks = blocks.filter(|blocks| *blocks <= MOST_FOLDED_BLOCKS)?;
        if self.cluster != Dim3::ONE {
            return None;
        }
        let most = limits.thresholds().grid.x.min(self.most);
        let flat = Dim3::new(blocks, 1, 1);
        let parts = GridParts::new(flat, flat.with(Axis::X, most), Dim3::ONE);
        Some(self.plan(Strategy::Folded, parts, limits))
    }

    /// The plan of these parts. The largest part is validated.
    fn plan(
        &self,
        strategy: Strategy,
        parts: GridParts,
        limits: &LaunchLimits,
    ) -> Result<Plan, Violations> {
        let Self { request, batch, cluster, .. } = *self;
        let launch: ValidLaunch = validate(&request.grid(parts.largest()), limits)?;
        let items = batch.map_or(1, BatchAxis::items);
        Ok(Plan {
            // In every launch, an argument that follows items gets the whole batch.
            chunks: Chunks::one(items),
            launch,
            share: BlockRatio::ONE,
            axis: batch.map(BatchAxis::axis),
            strategy,
            whole: request
                .grid
                .narrow()
                .zip(cluster.narrow())
                .map(|(grid, cluster)| WholeGrid { grid, cluster }),
        })
    }
}

/// A folded entry divides numbers below 2^31 only. A legal launch on x has no more blocks.
pub(crate) const MOST_FOLDED_BLOCKS: u64 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{DeviceLimits, FormLimits, IndexLimit, IndexTerm, KernelLimits};

    fn device() -> DeviceLimits {
        let mut device = DeviceLimits::any_device();
        (device.cluster_launch, device.max_portable_cluster_blocks) = (true, 8);
        device.cooperative_launch = true;
        device
    }

    fn kernel(max_threads: u64) -> KernelLimits {
        KernelLimits { max_threads_per_block: Some(max_threads), ..KernelLimits::unknown("k") }
    }

    fn with_forms(forms: FormLimits) -> LaunchLimits {
        LaunchLimits::rewritten(device(), kernel(512), forms)
    }

    fn limits() -> LaunchLimits {
        with_forms(forms())
    }

    /// Those of a kernel that reads the block index on all axes, and no grid size.
    fn forms() -> FormLimits {
        FormLimits {
            shifted: kernel(256),
            folded: kernel(512),
            reads_block_index: [true; 3],
            reads_grid_size: [false; 3],
        }
    }

    fn request(grid: [u64; 3]) -> LaunchRequest {
        LaunchRequest::new(Dim3::new(grid[0], grid[1], grid[2]), Dim3::new(128, 1, 1))
    }

    fn plan(grid: [u64; 3], choice: Choice) -> Plan {
        Plan::new(&request(grid), None, &limits(), choice).expect("it is split")
    }

    fn grids(plan: &Plan) -> Vec<([u32; 3], [u32; 3])> {
        plan.launches().map(|one| (one.first_block, one.launch.grid())).collect()
    }

    fn rules(violations: &Violations) -> Vec<&'static str> {
        violations.iter().map(|violation| violation.rule.id()).collect()
    }

    const SHIFTED: Choice = Choice::AUTOMATIC.strategy(Strategy::Shifted);
    const FOLDED: Choice = Choice::AUTOMATIC.strategy(Strategy::Folded);

    #[test]
    fn a_legal_launch_is_that_of_the_original_unless_a_form_was_chosen() {
        let whole = plan([4, 5, 6], Choice::AUTOMATIC);
        assert_eq!((whole.strategy(), whole.whole, whole.items()), (Strategy::Whole, None, 1));
        for (choice, grid) in [(SHIFTED, [4, 5, 6]), (FOLDED, [120, 1, 1])] {
            let plan = plan([4, 5, 6], choice);
            assert_eq!((Some(plan.strategy()), plan.items()), (choice.strategy, 120));
            assert_eq!(grids(&plan), [([0; 3], grid)]);
            assert!(plan.is_for(&limits()) == plan.launch.is_for(&limits()));
        }
    }

    #[test]
    fn the_fewest_launches_are_planned_on_whichever_axes_overflow() {
        let most = u64::from(u32::MAX);
        for (grid, strategy, launches) in [
            ([1, 76_800, 1], Strategy::Folded, 1),
            ([1, 1, 65_536], Strategy::Folded, 1),
            ([1 << 31, 1, 1], Strategy::Shifted, 2),
            ([most, 1, 1], Strategy::Shifted, 3),
            ([1 << 15, 65_536, 1], Strategy::Shifted, 2),
            ([3, 70_000, 140_000], Strategy::Shifted, 6),
            ([1 << 31, 65_536, 131_071], Strategy::Shifted, 12),
        ] {
            let plan = plan(grid, Choice::AUTOMATIC);
            assert_eq!((plan.strategy(), plan.len()), (strategy, launches), "{grid:?}");
            let [x, y, z] = grid.map(u128::from);
            let blocks = plan.launches().map(|one| u128::from(one.chunk.items));
            assert_eq!(blocks.sum::<u128>(), x * y * z, "{grid:?}");
        }
        let parts = grids(&plan([4, 131_071, 1], SHIFTED));
        let rows = [(0, 43_690), (43_690, 43_690), (87_380, 43_691)];
        assert_eq!(parts, rows.map(|(first, size)| ([0, first, 0], [4, size, 1])));
    }

    #[test]
    fn a_cap_divides_z_first_and_x_last() {
        for (most, largest, launches) in [
            (120, [4, 5, 6], 1),
            (119, [4, 5, 3], 2),
            (20, [4, 5, 1], 6),
            (19, [4, 3, 1], 12),
            (4, [4, 1, 1], 30),
            (3, [2, 1, 1], 60),
            (1, [1, 1, 1], 120),
        ] {
            let plan = plan([4, 5, 6], Choice::at_most(most).strategy(Strategy::Shifted));
            assert_eq!((plan.launch.grid(), plan.len()), (largest, launches), "{most}");
            assert!(plan.largest_chunk() <= most);
        }
        let flat = plan([4, 5, 6], Choice::at_most(50).strategy(Strategy::Folded));
        assert_eq!(grids(&flat), [0, 40, 80].map(|first| ([first, 0, 0], [40, 1, 1])));
    }

    #[test]
    fn a_batch_is_chunked_unless_that_is_not_enough() {
        let limits = limits();
        let batch = BatchAxis::new(Axis::Y, 35_000).blocks_per_item(2);
        let on_y = Plan::new(&request([3, 70_000, 1]), Some(&batch), &limits, Choice::AUTOMATIC);
        let on_y = on_y.expect("chunks");
        assert_eq!((on_y.strategy(), on_y.whole, on_y.items()), (Strategy::Chunked, None, 35_000));
        let both =
            Plan::new(&request([3, 70_000, 65_536]), Some(&batch), &limits, Choice::AUTOMATIC);
        let both = both.expect("parts");
        assert_eq!((both.strategy(), both.len()), (Strategy::Shifted, 4));
        assert_eq!(both.chunks().map(|chunk| chunk.items).collect::<Vec<_>>(), [35_000]);
        // As many items as 20,000 blocks on y have.
        let choice = Choice::at_most(10_000).strategy(Strategy::Shifted);
        let capped = Plan::new(&request([3, 70_000, 1]), Some(&batch), &limits, choice);
        assert_eq!(capped.expect("parts").largest_chunk(), 3 * 17_500);
        // Parts of the grid address the whole batch.
        let wide = batch.index_32_bits(1 << 20);
        let wide = Plan::new(&request([3, 70_000, 65_536]), Some(&wide), &limits, SHIFTED);
        let expected = ["grid-dim-y", "grid-dim-z", "index-wrap"];
        assert_eq!(rules(&wide.expect_err("32-bit indices wrap")), expected);
    }

    #[test]
    fn a_batch_that_the_text_contradicts_is_launched_in_parts() {
        let batch = BatchAxis::new(Axis::Y, 35_000).blocks_per_item(2);
        let strategy = |forms: FormLimits, choice| {
            let limits = with_forms(forms);
            let plan = Plan::new(&request([3, 70_000, 1]), Some(&batch), &limits, choice);
            plan.expect("it is split").strategy()
        };
        for axis in 0..3 {
            let on = core::array::from_fn(|one| one == axis);
            let reads_size = FormLimits { reads_grid_size: on, ..forms() };
            let reads_index = FormLimits { reads_block_index: on, ..forms() };
            let on_y = axis == 1;
            let expected =
                [on_y, !on_y].map(
                    |contradicted| {
                        if contradicted { Strategy::Folded } else { Strategy::Chunked }
                    },
                );
            let found =
                [reads_size.clone(), reads_index].map(|forms| strategy(forms, Choice::AUTOMATIC));
            assert_eq!(found, expected, "{axis}");
            let chunked = Choice::AUTOMATIC.strategy(Strategy::Chunked);
            assert_eq!(strategy(reads_size, chunked), Strategy::Chunked);
        }
    }

    #[test]
    fn parts_of_a_launch_in_clusters_are_shifted_and_keep_clusters_whole() {
        let planned = |request: LaunchRequest, limits: &LaunchLimits, choice| {
            let plan = Plan::new(&request, None, limits, choice).expect("parts");
            assert_eq!(plan.strategy(), Strategy::Shifted);
            grids(&plan)
        };
        let in_fours = request([2, 131_072, 1]).cluster(Dim3::new(1, 4, 1));
        let parts = planned(in_fours, &limits(), Choice::AUTOMATIC);
        let rows = [(0, 43_688), (43_688, 43_692), (87_380, 43_692)];
        assert_eq!(parts, rows.map(|(first, size)| ([0, first, 0], [2, size, 1])));
        // A compiled-in cluster needs no attribute of the launch.
        let of_two = |threads| KernelLimits {
            required_cluster: Some(Dim3::new(1, 1, 2)),
            ..kernel(threads)
        };
        let compiled = FormLimits { shifted: of_two(256), folded: of_two(512), ..forms() };
        let compiled = LaunchLimits::rewritten(device(), of_two(512), compiled);
        let parts = planned(request([1, 1, 131_070]), &compiled, Choice::AUTOMATIC);
        assert_eq!(parts, [0, 43_690, 87_380].map(|first| ([0, 0, first], [1, 1, 43_690])));
        let four = Choice::at_most(9).strategy(Strategy::Shifted);
        let cubes = request([4, 70_000, 2]).cluster(Dim3::new(2, 2, 2));
        let parts = planned(cubes, &limits(), four);
        assert_eq!((parts.len(), parts[1]), (70_000, ([2, 0, 0], [2, 2, 2])));
    }

    #[test]
    fn forms_do_not_launch_a_grid_whose_indices_wrap() {
        let term = |factor, y| IndexTerm { factor, grid: [0, y, 0], block: [0; 3] };
        let terms = vec![term(65_536, 1), term(-65_536, 0)];
        let index = vec![IndexLimit { terms, most: 2_147_483_647 }];
        let kernel = KernelLimits { index, ..kernel(512) };
        let limits = LaunchLimits::rewritten(device(), kernel, forms());
        let large = request([1, 70_000, 1]);
        for choice in [Choice::AUTOMATIC, SHIFTED, FOLDED] {
            let refused = Plan::new(&large, None, &limits, choice).expect_err("it wraps");
            assert_eq!(rules(&refused), ["grid-dim-y", "index-wrap"]);
            let wide = Plan::new(&request([60_000, 32_768, 1]), None, &limits, choice);
            assert_eq!(wide.expect("32,768 rows do not wrap").len(), 1);
        }
        let batch = BatchAxis::new(Axis::Y, 70_000);
        let chunked = Plan::new(&large, Some(&batch), &limits, Choice::AUTOMATIC).expect("chunks");
        assert_eq!((chunked.strategy(), chunked.len()), (Strategy::Chunked, 3));
    }

    #[test]
    fn what_forms_cannot_do_is_rejected_with_the_reason() {
        let limits = limits();
        let rejected = |request: LaunchRequest, choice| {
            rules(&Plan::new(&request, None, &limits, choice).expect_err("not legal"))
        };
        let large = request([1, 70_000, 1]);
        let wide = LaunchRequest { block: Dim3::new(384, 1, 1), ..large };
        assert_eq!(rejected(wide, SHIFTED), ["kernel-threads-per-block"]);
        assert_eq!(Plan::new(&wide, None, &limits, FOLDED).expect("fits").len(), 1);
        let automatic = Plan::new(&wide, None, &limits, Choice::AUTOMATIC);
        assert_eq!(automatic.expect("fits").strategy(), Strategy::Folded);
        let wider = LaunchRequest { block: Dim3::new(1024, 1, 1), ..large };
        let expected = ["grid-dim-y", "kernel-threads-per-block"];
        assert_eq!(rejected(wider, Choice::AUTOMATIC), expected);
        assert_eq!(
            rejected(request([0, 70_000, 1]), SHIFTED)[1..],
            ["grid-dim-zero", "shift-unavailable"]
        );
        let huge = request([1, 1 << 32, 1]);
        assert_eq!(rejected(huge, Choice::AUTOMATIC), ["grid-dim-y"]);
        let most = request([1 << 15, 65_536, 1]);
        assert_eq!(Plan::new(&most, None, &limits, FOLDED).expect("2^31 blocks").len(), 2);
        for many in [request([1 << 15, 65_537, 1]), request([1 << 20, 70_000, 1])] {
            assert_eq!(rejected(many, FOLDED), ["grid-dim-y", "fold-unavailable"]);
            let automatic = Plan::new(&many, None, &limits, Choice::AUTOMATIC);
            assert_eq!(automatic.expect("parts").strategy(), Strategy::Shifted);
        }
        let clusters = request([2, 70_000, 1]).cluster(Dim3::new(2, 1, 1));
        assert_eq!(rejected(clusters, FOLDED), ["grid-dim-y", "fold-unavailable"]);
        let two = Choice::at_most(3).strategy(Strategy::Shifted);
        let uneven = request([3, 70_000, 1]).cluster(Dim3::new(2, 1, 1));
        assert_eq!(rejected(uneven, SHIFTED)[..2], ["grid-dim-y", "cluster-divides-grid"]);
        let cube = request([2, 70_000, 1]).cluster(Dim3::new(2, 2, 1));
        assert_eq!(rejected(cube, two), ["grid-dim-y", "split-cluster"]);
        let cooperative = request([2, 2, 1]).cooperative();
        let halves = Choice::at_most(2).strategy(Strategy::Shifted);
        assert_eq!(rejected(cooperative, halves), ["split-cooperative"]);
        let large = request([1, 70_000, 1]);
        let without = LaunchLimits::new(device(), kernel(512));
        let original = Plan::new(&large, None, &without, SHIFTED).expect_err("no forms");
        assert_eq!(rules(&original), ["grid-dim-y", "shift-unavailable"]);
        for strategy in [Strategy::Whole, Strategy::Chunked] {
            let choice = Choice::AUTOMATIC.strategy(strategy);
            assert_eq!(rejected(large, choice), ["grid-dim-y"], "{strategy}");
        }
    }
}
