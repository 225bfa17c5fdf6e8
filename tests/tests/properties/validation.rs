//! Validation of any request agrees with the rules written down a second time.

use std::collections::BTreeSet;

use gridguard::{
    Axis, Dim3, LaunchLimits, LaunchRequest, ResidencyLimits, Rule, validate, validate_resident,
};
use proptest::prelude::*;

use crate::cases;
use crate::generate::{device, kernel, request, size};
use crate::oracle;

/// Rules of which several axes can be broken at once, each in a violation of its own.
const OF_SEVERAL_AXES: [Rule; 5] = [
    Rule::GridDimZero,
    Rule::BlockDimZero,
    Rule::ClusterSize,
    Rule::ClusterDividesGrid,
    Rule::ClusterRequired,
];

proptest! {
    #![proptest_config(cases(5000))]

    #[test]
    fn validation_agrees_with_a_naive_second_writing(
        request in request(), device in device(), kernel in kernel(),
    ) {
        let expected = oracle::broken(&request, &device, &kernel);
        let clusters = device.cluster_launch;
        let limits = LaunchLimits::new(device, kernel);
        match validate(&request, &limits) {
            Ok(launch) => {
                prop_assert!(expected.is_empty(), "{expected:?} went unseen");
                prop_assert!(launch.is_for(&limits));
                prop_assert_eq!(Dim3::from(launch.grid()), request.grid);
                prop_assert_eq!(Dim3::from(launch.block()), request.block);
                // A device without clusters has none of one block either.
                let cluster = request.named_cluster().filter(|_| clusters);
                prop_assert_eq!(launch.cluster().map(Dim3::from), cluster);
                prop_assert_eq!(launch.is_cooperative(), request.cooperative);
                let shared = u64::from(launch.dynamic_shared_bytes());
                prop_assert_eq!(shared, request.dynamic_shared_bytes);
            }
            Err(violations) => {
                let rules: Vec<Rule> = violations.iter().map(|violation| violation.rule).collect();
                prop_assert!(rules.is_sorted(), "{rules:?} are not in order");
                let set: BTreeSet<Rule> = rules.iter().copied().collect();
                prop_assert_eq!(&set, &expected);
                let places: BTreeSet<(Rule, Option<Axis>)> = violations
                    .iter()
                    .map(|violation| (violation.rule, violation.axis))
                    .collect();
                prop_assert_eq!(places.len(), rules.len(), "one violation a rule and axis");
                for rule in set {
                    let times = rules.iter().filter(|other| **other == rule).count();
                    prop_assert!(times == 1 || OF_SEVERAL_AXES.contains(&rule), "{rule}");
                }
            }
        }
    }

    #[test]
    fn residency_adds_its_own_rules_and_changes_no_others(
        request in request(), device in device(), kernel in kernel(),
        blocks in prop::option::of(size()), cluster_blocks in prop::option::of(0_u64..20),
    ) {
        let mut expected = oracle::broken(&request, &device, &kernel);
        let more_than = |most: Option<u64>, dim: Dim3| most.is_some_and(|m| dim.volume() > m.into());
        if request.cooperative && more_than(blocks, request.grid) {
            expected.insert(Rule::CooperativeResidency);
        }
        let cluster = request.named_cluster().or(kernel.required_cluster);
        let too_wide = cluster.is_some_and(|cluster| more_than(cluster_blocks, cluster));
        if too_wide && !expected.contains(&Rule::ClusterSize) {
            expected.insert(Rule::ClusterResidency);
        }
        let limits = LaunchLimits::new(device, kernel);
        let room = ResidencyLimits { blocks, cluster_blocks };
        let broken: BTreeSet<Rule> = match validate_resident(&request, &limits, &room) {
            Ok(_) => BTreeSet::new(),
            Err(violations) => violations.iter().map(|violation| violation.rule).collect(),
        };
        prop_assert_eq!(broken, expected);
    }

    #[test]
    fn each_violation_says_what_was_asked_for_and_a_limit_below_it(
        request in request(), device in device(), kernel in kernel(),
    ) {
        let limits = LaunchLimits::new(device, kernel);
        let Err(violations) = validate(&request, &limits) else { return Ok(()) };
        for violation in &violations {
            let (requested, limit) = (violation.requested, u128::from(violation.limit));
            match violation.rule {
                Rule::GridDimX | Rule::GridDimY | Rule::GridDimZ => {
                    let asked = request.grid.along(violation.axis.expect("an axis"));
                    prop_assert_eq!(requested, u128::from(asked));
                    prop_assert!(requested > limit);
                }
                Rule::GridDimZero | Rule::BlockDimZero => prop_assert_eq!((requested, limit), (0, 1)),
                Rule::ClusterUnsupported => prop_assert_eq!(limit, 0),
                Rule::ClusterSize if requested == 0 => prop_assert_eq!(limit, 1),
                Rule::ClusterDividesGrid => prop_assert!(requested % limit != 0),
                Rule::ClusterRequired => prop_assert!(requested != limit),
                rule => prop_assert!(requested > limit, "{rule}: {requested}, {limit}"),
            }
            prop_assert!(violation.to_string().contains(&limit.to_string())
                || matches!(violation.rule, Rule::GridDimZero | Rule::BlockDimZero
                    | Rule::ClusterUnsupported | Rule::ClusterRequired
                    | Rule::CooperativeUnsupported | Rule::DependentUnsupported));
        }
    }

    #[test]
    fn no_numbers_make_validation_panic(
        numbers in prop::array::uniform11(prop_oneof![size(), Just(u64::MAX), Just(0)]),
        cooperative: bool, device in device(), kernel in kernel(),
    ) {
        let [gx, gy, gz, bx, by, bz, cx, cy, cz, shared, parameters] = numbers;
        let mut request = LaunchRequest::new(Dim3::new(gx, gy, gz), Dim3::new(bx, by, bz))
            .dynamic_shared_bytes(shared)
            .parameter_bytes(parameters)
            .cluster(Dim3::new(cx, cy, cz));
        request.cooperative = cooperative;
        let expected = oracle::broken(&request, &device, &kernel);
        let answer = validate(&request, &LaunchLimits::new(device, kernel));
        prop_assert_eq!(answer.is_ok(), expected.is_empty());
        if let Err(violations) = answer {
            prop_assert!(!violations.to_string().is_empty());
        }
    }
}
