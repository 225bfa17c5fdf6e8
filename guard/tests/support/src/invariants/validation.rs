//! Validation agrees with a second implementation of the rules.

use std::collections::BTreeSet;

use gridguard::{
    Axis, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, OccupancyLimits, Rule,
    validate, validate_co_resident,
};
use proptest::strategy::BoxedStrategy;

use super::bytes::{Bytes, from_bytes};
use super::generate::{device, index, kernel, local_bytes, request, size, wild_request};
use super::oracle;

/// A request and the limits to check it against.
#[derive(Clone, Debug)]
pub struct Question {
    request: LaunchRequest,
    device: DeviceLimits,
    kernel: KernelLimits,
    occupancy: OccupancyLimits,
}

/// Questions, most of them about requests that are nearly legal.
pub fn questions() -> BoxedStrategy<Question> {
    from_bytes(question)
}

fn question(from: &mut Bytes<'_>) -> Question {
    let request = if from.one_in(5) { wild_request(from) } else { request(from) };
    let (device, mut kernel) = (device(from), kernel(from));
    let (blocks, cluster_blocks) = (from.maybe(2, size), from.maybe(2, |from| from.within(0..20)));
    kernel.local_bytes_per_thread = local_bytes(from);
    kernel.index = index(from);
    Question { request, device, kernel, occupancy: OccupancyLimits { blocks, cluster_blocks } }
}

/// Checks all invariants for a question made from `bytes`.
pub fn check(bytes: &[u8]) {
    let question = question(&mut Bytes::new(bytes));
    agrees_with_a_second_writing(&question);
    occupancy_decides_its_own_rules_alone(&question);
    every_violation_names_a_limit_that_is_passed(&question);
}

/// Rules that several axes can break at once. Each axis has its own violation.
const OF_SEVERAL_AXES: [Rule; 6] = [
    Rule::GridDimZero,
    Rule::BlockDimZero,
    Rule::RequiredBlock,
    Rule::ClusterSize,
    Rule::ClusterDividesGrid,
    Rule::ClusterRequired,
];

/// Exactly the broken rules are reported, in order, with one violation per rule and axis; a request
/// that breaks none becomes the requested launch.
pub fn agrees_with_a_second_writing(question: &Question) {
    let Question { request, device, kernel, .. } = question;
    let expected = oracle::broken(request, device, kernel);
    let limits = LaunchLimits::new(device.clone(), kernel.clone());
    match validate(request, &limits) {
        Ok(launch) => {
            assert!(expected.is_empty(), "{expected:?} went unseen");
            assert!(launch.is_for(&limits));
            assert_eq!(Dim3::from(launch.grid()), request.grid);
            assert_eq!(Dim3::from(launch.block()), request.block);
            // A device without clusters has none of one block either.
            let cluster = request.named_cluster().filter(|_| device.cluster_launch);
            assert_eq!(launch.cluster().map(Dim3::from), cluster);
            assert_eq!(launch.is_cooperative(), request.cooperative);
            assert_eq!(u64::from(launch.dynamic_shared_bytes()), request.dynamic_shared_bytes);
        }
        Err(violations) => {
            assert!(!violations.to_string().is_empty());
            let rules: Vec<Rule> = violations.iter().map(|violation| violation.rule).collect();
            assert!(rules.is_sorted(), "{rules:?} are not in order");
            let set: BTreeSet<Rule> = rules.iter().copied().collect();
            assert_eq!(set, expected);
            let places: BTreeSet<(Rule, Option<Axis>)> =
                violations.iter().map(|violation| (violation.rule, violation.axis)).collect();
            assert_eq!(places.len(), rules.len(), "one violation a rule and axis");
            for rule in set {
                let times = rules.iter().filter(|other| **other == rule).count();
                assert!(times == 1 || OF_SEVERAL_AXES.contains(&rule), "{rule}");
            }
        }
    }
}

/// The driver's occupancy decides its two rules and changes no others; it replaces the estimate.
pub fn occupancy_decides_its_own_rules_alone(question: &Question) {
    let Question { request, device, kernel, occupancy } = question;
    let mut expected = oracle::broken(request, device, kernel);
    let more_than = |most: Option<u64>, dim: Dim3| most.is_some_and(|m| dim.volume() > m.into());
    if occupancy.blocks.is_some() {
        expected.remove(&Rule::CooperativeResidency);
    }
    if request.cooperative && more_than(occupancy.blocks, request.grid) {
        expected.insert(Rule::CooperativeResidency);
    }
    let cluster = request.named_cluster().or(kernel.required_cluster);
    let too_wide = cluster.is_some_and(|cluster| more_than(occupancy.cluster_blocks, cluster));
    if too_wide && !expected.contains(&Rule::ClusterSize) {
        expected.insert(Rule::ClusterResidency);
    }
    let limits = LaunchLimits::new(device.clone(), kernel.clone());
    let broken: BTreeSet<Rule> = match validate_co_resident(request, &limits, occupancy) {
        Ok(_) => BTreeSet::new(),
        Err(violations) => violations.iter().map(|violation| violation.rule).collect(),
    };
    assert_eq!(broken, expected);
}

/// Each violation states the request and a lower limit, and shows that limit.
pub fn every_violation_names_a_limit_that_is_passed(question: &Question) {
    let Question { request, device, kernel, .. } = question;
    let limits = LaunchLimits::new(device.clone(), kernel.clone());
    let Err(violations) = validate(request, &limits) else { return };
    for violation in &violations {
        let (requested, limit) = (violation.requested, u128::from(violation.limit));
        match violation.rule {
            Rule::GridDimX | Rule::GridDimY | Rule::GridDimZ => {
                let asked = request.grid.along(violation.axis.expect("an axis"));
                assert_eq!(requested, u128::from(asked));
                assert!(requested > limit);
            }
            Rule::GridDimZero | Rule::BlockDimZero => assert_eq!((requested, limit), (0, 1)),
            Rule::ClusterUnsupported => assert_eq!(limit, 0),
            Rule::ClusterSize if requested == 0 => assert_eq!(limit, 1),
            Rule::ClusterDividesGrid => assert!(requested % limit != 0),
            Rule::RequiredBlock | Rule::ClusterRequired => assert!(requested != limit),
            rule => assert!(requested > limit, "{rule}: {requested}, {limit}"),
        }
        let shows_no_limit = matches!(
            violation.rule,
            Rule::GridDimZero
                | Rule::BlockDimZero
                | Rule::ClusterUnsupported
                | Rule::ClusterRequired
                | Rule::CooperativeUnsupported
                | Rule::DependentUnsupported
        );
        assert!(violation.to_string().contains(&limit.to_string()) || shows_no_limit);
    }
}
