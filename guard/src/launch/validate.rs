//! Validates launch requests, without a driver call, and without allocation while the launch is legal.

use crate::dim::{Axis, Dim3};
use crate::launch::explain::violations;
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::valid::ValidLaunch;
use crate::launch::violation::Violations;
use crate::limits::launch::{LaunchLimits, Thresholds};
use crate::limits::occupancy::OccupancyLimits;

/// Validates `request` against `limits`.
///
/// Allocates nothing while the launch is legal. For a cooperative launch it estimates whether all blocks can
/// be co-resident: see [`LaunchLimits::co_resident_blocks`].
///
/// # Errors
///
/// All [`Violations`] of the launch, each with the requested value, the limit, its owner and a remedy.
///
/// ```
/// use gridguard::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, validate};
///
/// let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("attention"));
/// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
/// let violations = validate(&request, &limits).expect_err("y takes 65,535 blocks");
/// assert_eq!(
///     violations.to_string(),
///     "grid.y is 76800 blocks, the limit is 65535 (generic CUDA device): \
///      split axis y into 2 launches of 38400, or fold it into x",
/// );
/// ```
#[inline(always)]
pub fn validate(request: &LaunchRequest, limits: &LaunchLimits) -> Result<ValidLaunch, Violations> {
    match ValidLaunch::plain(request, limits) {
        Some(launch) => Ok(launch),
        None => validate_co_resident(request, limits, &OccupancyLimits::UNKNOWN),
    }
}

/// As [`validate`], with the occupancy that the driver reports.
///
/// Allocates nothing while the launch is legal.
///
/// # Errors
///
/// As [`validate`].
///
/// ```
/// use gridguard::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest};
/// use gridguard::{OccupancyLimits, validate_co_resident};
///
/// let mut device = DeviceLimits::any_device();
/// device.cooperative_launch = true;
/// let limits = LaunchLimits::new(device, KernelLimits::unknown("reduce"));
/// let request = LaunchRequest::new(Dim3::new(265, 1, 1), Dim3::new(1024, 1, 1)).cooperative();
/// let occupancy = OccupancyLimits { blocks: Some(264), cluster_blocks: None };
/// let violations = validate_co_resident(&request, &limits, &occupancy).expect_err("264 at most");
/// assert_eq!(
///     violations.to_string(),
///     "cooperative grid has 265 blocks, only 264 can be co-resident (generic CUDA device): \
///      use fewer blocks, each looping over several items",
/// );
/// ```
#[inline(never)]
pub fn validate_co_resident(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    occupancy: &OccupancyLimits,
) -> Result<ValidLaunch, Violations> {
    valid_unless(broken_rules(request, limits, occupancy), request, limits)
        .map_err(|broken| violations(request, limits, occupancy, broken))
}

/// The validated launch, or the rules that `request` breaks.
#[inline]
pub(crate) fn check(
    request: &LaunchRequest,
    limits: &LaunchLimits,
) -> Result<ValidLaunch, RuleSet> {
    match ValidLaunch::plain(request, limits) {
        Some(launch) => Ok(launch),
        None => check_rules(request, limits),
    }
}

/// As [`check`], for a launch that may be split along `axis`. Most such launches break only the rule of their
/// grid along that axis, which this function finds without checking the other rules.
#[inline]
pub(crate) fn check_along(
    axis: Axis,
    request: &LaunchRequest,
    limits: &LaunchLimits,
) -> Result<ValidLaunch, RuleSet> {
    let (blocks, most) = (request.grid.along(axis), limits.plain().grid_along(axis));
    let grid = request.grid.with(axis, blocks.min(most));
    match ValidLaunch::plain_with_grid(grid, request, limits) {
        Some(launch) if blocks <= most => Ok(launch),
        // A plain launch of a smaller grid is legal, so only the grid is too large.
        Some(_) => Err(RuleSet::of(Rule::grid_dim(axis))),
        None => check_rules(request, limits),
    }
}

#[inline(never)]
fn check_rules(request: &LaunchRequest, limits: &LaunchLimits) -> Result<ValidLaunch, RuleSet> {
    let broken = broken_rules(request, limits, &OccupancyLimits::UNKNOWN);
    valid_unless(broken, request, limits)
}

fn valid_unless(
    broken: RuleSet,
    request: &LaunchRequest,
    limits: &LaunchLimits,
) -> Result<ValidLaunch, RuleSet> {
    let legal = if broken.is_empty() { ValidLaunch::unchecked(request, limits) } else { None };
    legal.ok_or(broken)
}

/// The rules that `request` breaks.
#[inline]
pub(crate) fn broken_rules(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    occupancy: &OccupancyLimits,
) -> RuleSet {
    let mut broken = RuleSet::EMPTY;
    check_each(request, limits, occupancy, |rule, _, _, _| broken.add(rule));
    broken
}

/// Checks every rule of launches. Calls `broken` with the rule, its axis, the requested value and the limit, for
/// each axis along which a rule is broken.
#[inline(always)]
pub(super) fn check_each(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    occupancy: &OccupancyLimits,
    mut broken: impl FnMut(Rule, Option<Axis>, u128, u64),
) {
    let &LaunchRequest {
        grid,
        block,
        dynamic_shared_bytes,
        // `cluster_with` reads it.
        cluster: _,
        cooperative,
        parameter_bytes,
        // The driver accepts any priority.
        priority: _,
        dependent,
    } = request;
    let thresholds = limits.thresholds();
    let threads = block.volume();
    let mut at_most = |rule, axis, requested: u128, limit: u64| {
        if requested > limit.into() {
            broken(rule, axis, requested, limit);
        }
    };
    for axis in Axis::ALL {
        let (blocks, most) = (grid.along(axis), thresholds.grid.along(axis));
        at_most(Rule::grid_dim(axis), Some(axis), blocks.into(), most);
        let (threads, most) = (block.along(axis), thresholds.block.along(axis));
        at_most(Rule::block_dim(axis), Some(axis), threads.into(), most);
    }
    at_most(Rule::ThreadsPerBlock, None, threads, thresholds.device_threads);
    if let Some(launch_bounds) = thresholds.kernel_threads {
        at_most(Rule::KernelThreadsPerBlock, None, threads, launch_bounds);
    }
    at_most(Rule::ParameterBytes, None, parameter_bytes.into(), thresholds.parameter_bytes);
    along(Rule::GridDimZero, grid, Dim3::ONE, |size, least| size < least, &mut broken);
    along(Rule::BlockDimZero, block, Dim3::ONE, |size, least| size < least, &mut broken);
    if let Some(required) = thresholds.required_block {
        along(Rule::RequiredBlock, block, required, |size, only| size != only, &mut broken);
    }
    if thresholds.register_threads.is_some_and(|most| threads > most) {
        let limit = limits.device().max_registers_per_block;
        broken(Rule::RegistersPerBlock, None, limits.registers_per_block(threads), limit);
    }
    if thresholds.too_much_local_memory {
        let bytes = limits.kernel().local_bytes_per_thread;
        let limit = limits.device().max_local_bytes_per_thread();
        broken(Rule::LocalMemory, None, bytes.into(), limit);
    }
    if thresholds.opt_in_dynamic_bytes.is_none_or(|most| dynamic_shared_bytes > most) {
        let fixed = u128::from(limits.kernel().static_shared_bytes);
        let (total, limit) =
            (fixed + u128::from(dynamic_shared_bytes), limits.device().shared_bytes_limit());
        broken(Rule::SharedMemoryTotal, None, total, limit);
    } else if dynamic_shared_bytes > thresholds.dynamic_shared_bytes {
        // Opting in helps only where the device has enough.
        let limit = thresholds.dynamic_shared_bytes;
        broken(Rule::DynamicSharedMemoryOptIn, None, dynamic_shared_bytes.into(), limit);
    }
    if cooperative && !thresholds.cooperative_launch {
        broken(Rule::CooperativeUnsupported, None, 1, 0);
    }
    if cooperative
        && let Some(most) = co_resident_blocks(request, limits, occupancy)
        && grid.volume() > most.into()
    {
        broken(Rule::CooperativeResidency, None, grid.volume(), most);
    }
    if dependent && !limits.device().dependent_launch() {
        broken(Rule::DependentUnsupported, None, 1, 0);
    }
    match request.cluster_with(limits.kernel()) {
        Some(cluster) => check_cluster(grid, cluster, thresholds, occupancy, &mut broken),
        None if thresholds.cluster_must_be_set => broken(Rule::ClusterRequired, None, 0, 1),
        None => {}
    }
}

#[cold]
fn check_cluster(
    grid: Dim3,
    cluster: Dim3,
    thresholds: &Thresholds,
    occupancy: &OccupancyLimits,
    broken: &mut impl FnMut(Rule, Option<Axis>, u128, u64),
) {
    let blocks = cluster.volume();
    // Compiled-in clusters too: compilers accept 9 and 17 blocks (H200).
    let too_large = blocks > thresholds.cluster_blocks.into();
    if thresholds.cluster_launch {
        if let Some(required) = thresholds.required_cluster {
            along(Rule::ClusterRequired, cluster, required, |size, only| size != only, broken);
        }
        along(Rule::ClusterSize, cluster, Dim3::ONE, |size, least| size < least, broken);
        if too_large {
            broken(Rule::ClusterSize, None, blocks, thresholds.cluster_blocks);
        }
        let leaves_rest =
            |blocks: u64, unit| blocks.checked_rem(unit).is_some_and(|rest| rest != 0);
        along(Rule::ClusterDividesGrid, grid, cluster, leaves_rest, broken);
    } else if cluster != Dim3::ONE {
        broken(Rule::ClusterUnsupported, None, blocks, 0);
    }
    if let Some(resident) = occupancy.cluster_blocks
        && blocks > resident.into()
        && !(thresholds.cluster_launch && too_large)
    {
        broken(Rule::ClusterResidency, None, blocks, resident);
    }
}

/// Reports each axis along which `breaks` is true of `size` and `limit`.
#[inline(always)]
fn along(
    rule: Rule,
    size: Dim3,
    limit: Dim3,
    breaks: impl Fn(u64, u64) -> bool,
    broken: &mut impl FnMut(Rule, Option<Axis>, u128, u64),
) {
    for axis in Axis::ALL {
        let (requested, limit) = (size.along(axis), limit.along(axis));
        if breaks(requested, limit) {
            broken(rule, Some(axis), requested.into(), limit);
        }
    }
}

/// The most blocks of a cooperative `request`: the driver's number if it is known.
fn co_resident_blocks(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    occupancy: &OccupancyLimits,
) -> Option<u64> {
    if occupancy.blocks.is_some() || !limits.thresholds().estimates_occupancy {
        return occupancy.blocks;
    }
    limits.co_resident_blocks(request.block, request.dynamic_shared_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::array::uniform3;
    use proptest::bool::weighted;

    use super::*;
    use crate::limits::{DeviceLimits, KernelLimits};

    fn limits(change: impl FnOnce(&mut KernelLimits)) -> LaunchLimits {
        let mut kernel = KernelLimits::unknown("k");
        change(&mut kernel);
        LaunchLimits::new(DeviceLimits::any_device(), kernel)
    }

    #[test]
    fn all_violations_are_reported_at_once() {
        let request = LaunchRequest::new(Dim3::new(0, 65_536, 65_536), Dim3::new(1025, 1, 65));
        let violations = validate(&request, &limits(|_| {})).expect_err("five rules are broken");
        let rules: Vec<_> = violations.iter().map(|violation| violation.rule.id()).collect();
        assert_eq!(
            rules,
            [
                "grid-dim-y",
                "grid-dim-z",
                "grid-dim-zero",
                "block-dim-x",
                "block-dim-z",
                "threads-per-block"
            ]
        );
    }

    /// Kernels without known limits, with all limits known, and with a required cluster.
    fn kernels() -> Vec<LaunchLimits> {
        let known = |kernel: &mut KernelLimits| {
            kernel.max_threads_per_block = Some(700);
            kernel.registers_per_thread = 100;
            kernel.static_shared_bytes = 4096;
            kernel.max_dynamic_shared_bytes = Some(8192);
        };
        let too_large = |kernel: &mut KernelLimits| kernel.static_shared_bytes = u64::MAX;
        let too_local = |kernel: &mut KernelLimits| kernel.local_bytes_per_thread = 1 << 19;
        let mut generous = DeviceLimits::any_device();
        let most = u64::MAX;
        (generous.max_grid, generous.max_block) = (Dim3::new(most, most, most), generous.max_grid);
        generous.max_threads_per_block = most;
        vec![
            limits(|_| {}),
            limits(known),
            limits(too_large),
            limits(too_local),
            limits(|kernel| kernel.cluster_must_be_set = true),
            limits(|kernel| kernel.required_cluster = Some(Dim3::ONE)),
            LaunchLimits::new(generous, KernelLimits::unknown("k")),
        ]
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(if cfg!(miri) { 50 } else { 20_000 }))]
        #[test]
        fn the_fast_path_and_the_rules_agree_on_every_plain_launch(
            grid in uniform3(near(&[0, 1, 65_535, (1 << 31) - 1, 0xffff_ffff, u64::MAX])),
            block in uniform3(near(&[0, 1, 24, 64, 600, 1024, 65_535, 0xffff_ffff, u64::MAX])),
            shared in near(&[0, 8192, 48 << 10, 0xffff_ffff, u64::MAX]),
            parameters in near(&[0, 4096, 32_764, u64::MAX]),
            cluster in proptest::option::weighted(0.1, near(&[0, 1, 8])),
            [cooperative, dependent, prior] in uniform3(weighted(0.1)),
        ) {
            let request = LaunchRequest {
                grid: Dim3::new(grid[0], grid[1], grid[2]),
                block: Dim3::new(block[0], block[1], block[2]),
                dynamic_shared_bytes: shared,
                cluster: cluster.map(|blocks| Dim3::new(blocks, blocks, blocks)),
                cooperative,
                parameter_bytes: parameters,
                priority: prior.then_some(-1),
                dependent,
            };
            let plain = cluster.is_none() && !cooperative && !dependent && !prior;
            for limits in kernels() {
                let by_rules = check_rules(&request, &limits).ok();
                let fast = ValidLaunch::plain(&request, &limits);
                // With clusters, and limits above 32 bits, the fast path may decline legal launches.
                let thresholds = limits.thresholds();
                let all = thresholds.required_cluster.is_none() && thresholds.device_threads < u64::MAX;
                if fast.is_some() || all {
                    proptest::prop_assert_eq!(fast, by_rules.filter(|_| plain));
                }
                for axis in Axis::ALL {
                    proptest::prop_assert_eq!(
                        check_along(axis, &request, &limits),
                        check(&request, &limits)
                    );
                }
            }
        }
    }

    /// Small numbers, and all around `limits`.
    fn near(limits: &'static [u64]) -> impl proptest::strategy::Strategy<Value = u64> {
        use proptest::strategy::Strategy as _;
        let around = (proptest::sample::select(limits), -2_i64..=2);
        proptest::prop_oneof![
            1_u64..40,
            around.prop_map(|(limit, off)| limit.saturating_add_signed(off)),
        ]
    }

    #[test]
    fn a_grid_past_32_bits_is_reported_whole() {
        let request = LaunchRequest::new(Dim3::new(1, 4_294_967_301, 1), Dim3::ONE);
        let violations = validate(&request, &limits(|_| {})).expect_err("too large");
        assert_eq!(violations.iter().next().map(|v| v.requested), Some(4_294_967_301));
    }

    #[test]
    fn absurd_sizes_are_violations_and_never_wrap() {
        let huge = Dim3::new(u64::MAX, u64::MAX, u64::MAX);
        let request = LaunchRequest::new(huge, huge).dynamic_shared_bytes(u64::MAX);
        let violations = validate(&request, &limits(|_| {})).expect_err("absurd");
        assert!(violations.contains(Rule::SharedMemoryTotal));
        assert!(violations.iter().any(|v| v.requested == u128::MAX));
        assert!(!violations.to_string().is_empty());
    }

    #[test]
    fn limits_that_promise_more_than_32_bits_are_capped() {
        let mut device = DeviceLimits::any_device();
        device.max_grid = Dim3::new(u64::MAX, u64::MAX, u64::MAX);
        let limits = LaunchLimits::new(device, KernelLimits::unknown("k"));
        let request = LaunchRequest::new(Dim3::new(1 << 32, 1, 1), Dim3::ONE);
        let violations = validate(&request, &limits).expect_err("the driver takes 32 bits");
        assert_eq!(violations.iter().next().map(|v| v.limit), Some(u64::from(u32::MAX)));
    }

    #[test]
    fn a_cluster_of_one_block_is_none_on_a_device_without_clusters() {
        let one = LaunchRequest::new(Dim3::ONE, Dim3::ONE).cluster(Dim3::ONE);
        let cluster = |cluster_launch| {
            let device = DeviceLimits {
                cluster_launch,
                max_portable_cluster_blocks: 8,
                ..DeviceLimits::any_device()
            };
            let limits = LaunchLimits::new(device, KernelLimits::unknown("k"));
            validate(&one, &limits).expect("legal").cluster()
        };
        assert_eq!((cluster(false), cluster(true)), (None, Some([1, 1, 1])));
    }

    #[test]
    fn a_launch_knows_the_limits_it_was_validated_against() {
        let (ours, theirs) = (limits(|_| {}), limits(|_| {}));
        let launch = validate(&LaunchRequest::new(Dim3::ONE, Dim3::ONE), &ours).expect("legal");
        assert!(launch.is_for(&ours.clone()));
        assert!(!launch.is_for(&theirs));
    }
}
