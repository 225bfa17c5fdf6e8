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

/// Kernels of which nothing is known, that know all their limits, or that need a cluster.
fn kernels() -> Vec<LaunchLimits> {
    let known = |kernel: &mut KernelLimits| {
        kernel.max_threads_per_block = 700;
        kernel.registers_per_thread = 100;
        kernel.static_shared_bytes = 4096;
        kernel.max_dynamic_shared_bytes = 8192;
    };
    let crowded = |kernel: &mut KernelLimits| kernel.static_shared_bytes = u64::MAX;
    let mut generous = DeviceLimits::any_device();
    let most = u64::MAX;
    (generous.max_grid, generous.max_block) = (Dim3::new(most, most, most), generous.max_grid);
    generous.max_threads_per_block = most;
    vec![
        limits(|_| {}),
        limits(known),
        limits(crowded),
        limits(|kernel| kernel.cluster_must_be_set = true),
        limits(|kernel| kernel.required_cluster = Some(Dim3::ONE)),
        LaunchLimits::new(generous, KernelLimits::unknown("k")),
    ]
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(if cfg!(miri) { 50 } else { 20_000 }))]
    #[test]
    fn the_short_way_and_the_rules_agree_on_every_plain_launch(
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
            let by_rules = judge_by_rules(&request, &limits).ok();
            let short = ValidLaunch::plain(&request, &limits);
            // With clusters, and limits of 64 bits, it leaves more to the rules than it must.
            let ceilings = limits.ceilings();
            let all = ceilings.required_cluster.is_none() && ceilings.device_threads < u64::MAX;
            if short.is_some() || all {
                proptest::prop_assert_eq!(short, by_rules.filter(|_| plain));
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
