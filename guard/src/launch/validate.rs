//! Validates launch requests, without a driver call, and without allocation while the launch is legal.

use crate::dim::Axis;
use crate::launch::check::check_each;
use crate::launch::explain::violations;
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::valid::ValidLaunch;
use crate::launch::violation::Violations;
use crate::limits::launch::LaunchLimits;
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
///      split axis y into 2 launches of 38400, or fold it into x [grid-dim-y]",
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
///      use fewer blocks, each looping over several items [cooperative-residency]",
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
        // With a smaller grid the launch is legal, so only the grid is too large.
        Some(_) if !limits.plain().is_indexed => Err(RuleSet::of(Rule::grid_dim(axis))),
        _ => check_rules(request, limits),
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

#[cfg(test)]
mod tests {
    use proptest::array::uniform3;
    use proptest::bool::weighted;

    use super::*;
    use crate::dim::Dim3;
    use crate::limits::{DeviceLimits, KernelLimits};

    fn limits(change: impl FnOnce(&mut KernelLimits)) -> LaunchLimits {
        let mut kernel = KernelLimits::unknown("k");
        change(&mut kernel);
        LaunchLimits::new(DeviceLimits::any_device(), kernel)
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
                let all = limits.kernel().required_cluster.is_none()
                    && limits.device().max_threads_per_block < u64::MAX;
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
