//! Plans of any request and batch are legal and complete, and rejected requests cannot be planned.

use std::collections::BTreeSet;

use gridguard::Rule;
use gridguard_test_support::invariants::plans::{
    cases, what_is_planned_is_legal_and_what_is_refused_is_hopeless,
    without_a_batch_a_plan_is_the_launch,
};
use proptest::prelude::*;

proptest! {
    #![proptest_config(super::cases(5000))]

    #[test]
    fn what_is_planned_is_legal_and_whole_and_what_is_refused_is_hopeless(case in cases()) {
        what_is_planned_is_legal_and_what_is_refused_is_hopeless(&case);
    }

    #[test]
    fn without_a_batch_a_plan_is_the_launch_or_its_violations(case in cases()) {
        without_a_batch_a_plan_is_the_launch(&case);
    }
}

/// Counts the results of the cases above, so that every kind of plan stays tested if the generators change.
#[test]
fn the_cases_cover_every_kind_of_plan_and_rejection() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    // Only a driver knows which clusters can be co-resident.
    let (mut ways, mut rules) = (BTreeSet::new(), BTreeSet::from([Rule::ClusterResidency]));
    for _ in 0..40_000 {
        if ways.len() == 4 && rules.len() == Rule::ALL.len() {
            break;
        }
        let case = cases().new_tree(&mut runner).expect("a case").current();
        match case.plan(&case.limits()) {
            Ok(plan) if plan.is_empty() => _ = ways.insert("empty".to_owned()),
            Ok(plan) => _ = ways.insert(plan.strategy().to_string()),
            Err(violations) => rules.extend(violations.iter().map(|violation| violation.rule)),
        }
    }
    assert_eq!(ways.into_iter().collect::<Vec<_>>(), ["chunked", "empty", "folded", "whole"]);
    let missing: Vec<_> = Rule::ALL.iter().filter(|rule| !rules.contains(rule)).collect();
    assert!(missing.is_empty(), "no case breaks {missing:?}");
}
