//! Plans of any request and batch: what is planned is legal and whole, what is refused is hopeless.

use std::collections::BTreeSet;

use gridguard::{
    Dim3, LaunchLimits, Plan, PlannedLaunch, Rule, Strategy as Way, Violations, validate,
};
use proptest::prelude::*;

use crate::case::{Case, case};
use crate::cases;
use crate::generate::{device, kernel, request};

/// Launches of a plan that are all looked at; of more, the first ones and the last.
const WALKED: usize = 3000;

/// What holds for each launch of a plan.
fn check_launch(case: &Case, limits: &LaunchLimits, plan: &Plan, one: &PlannedLaunch) {
    let PlannedLaunch { chunk, launch, .. } = one;
    let mut request = case.with_grid(launch.grid());
    // The chunks after the first wait for the one before them.
    request.dependent &= chunk.index == 0;
    let again = validate(&request, limits);
    assert_eq!(again.as_ref(), Ok(launch), "validated once more");
    assert!(plan.is_for(limits));
    assert!(case.batch.holds(chunk.items), "{chunk:?} is past index width or workspace");
    assert!(chunk.items <= plan.largest_chunk());
    assert!(chunk.items <= case.wanted(), "{chunk:?} is more than was wanted");
    let blocks = case.batch.blocks(chunk.items);
    let axis = case.batch.axis;
    let grid = Dim3::from(launch.grid());
    let expected = match plan.strategy() {
        Way::Folded => case.folded().expect("it may be folded").grid,
        _ => case.request.grid.with(axis, u64::try_from(blocks).expect("within 32 bits")),
    };
    assert_eq!(grid, expected);
    if plan.strategy() == Way::Chunked {
        assert!(chunk.start.is_multiple_of(case.batch.align.max(1)), "{chunk:?} is not aligned");
        let per_block = case.batch.items_per_block.unwrap_or(1).max(1);
        assert!(chunk.start.is_multiple_of(per_block), "{chunk:?} shares a block");
    }
}

fn check_plan(case: &Case, limits: &LaunchLimits, plan: &Plan) {
    assert!(case.covers(), "the grid is not that of the batch");
    assert_eq!(plan.items(), case.batch.items);
    assert_eq!(plan.is_empty(), case.batch.items == 0);
    assert_eq!(u64::try_from(plan.launches().len()), Ok(plan.len()));
    let mut next = 0;
    for (place, one) in (0..).zip(plan.launches().take(WALKED)) {
        assert_eq!((one.chunk.index, one.chunk.start), (place, next), "a gap or an overlap");
        next = one.chunk.end();
        check_launch(case, limits, plan, &one);
    }
    if plan.launches().len() <= WALKED {
        assert_eq!(next, case.batch.items, "items are missing at the end");
    } else {
        let last = plan.chunks().at(plan.len() - 1).expect("a last one");
        assert_eq!(last.end(), case.batch.items, "items are missing at the end");
    }
    match plan.strategy() {
        Way::Whole => assert!(plan.is_empty() || case.whole_is_right()),
        Way::Folded => {
            let chosen = case.preference.way == Some(Way::Folded);
            assert!(chosen || !case.whole_is_right(), "folded without need");
        }
        _ => {
            assert!(!case.whole_is_right() && !case.request.cooperative);
            let chosen = case.preference.way == Some(Way::Chunked);
            assert!(chosen || case.folded().is_none(), "one folded launch would do");
            assert_eq!(u128::from(plan.len()), case.fewest_chunks());
        }
    }
    if plan.strategy() != Way::Chunked {
        assert!(plan.len() <= 1);
    }
}

fn check_refusal(case: &Case, violations: &Violations) {
    assert!(!violations.is_empty(), "refused without a reason");
    assert!(!violations.to_string().is_empty());
    let rules: Vec<Rule> = violations.iter().map(|violation| violation.rule).collect();
    assert!(rules.is_sorted(), "{rules:?} are not in order");
    if !case.covers() {
        assert_eq!(rules, [Rule::BatchCoversGrid]);
        return;
    }
    if case.batch.items == 0 {
        // Judged as a batch of one item would be, since that is what will come.
        return;
    }
    let folded = case.preference.way == Some(Way::Folded);
    assert!(!case.whole_is_right() || folded, "one launch would do: {violations}");
    for rule in case.broken() {
        assert!(violations.contains(rule), "{rule} is not told: {violations}");
    }
    let may_split = matches!(case.preference.way, None | Some(Way::Chunked));
    let may_fold = matches!(case.preference.way, None | Some(Way::Folded));
    if case.only_the_axis_overflows() {
        if may_fold {
            assert_eq!(case.folded(), None, "folding would do: {violations}");
        }
        if may_split && !case.request.cooperative {
            assert_eq!(case.smallest_chunk(), None, "chunks would do: {violations}");
        }
    }
}

proptest! {
    #![proptest_config(cases(5000))]

    #[test]
    fn what_is_planned_is_legal_and_whole_and_what_is_refused_is_hopeless(case in case()) {
        let limits = case.limits();
        match case.plan(&limits) {
            Ok(plan) => check_plan(&case, &limits, &plan),
            Err(violations) => check_refusal(&case, &violations),
        }
    }

    #[test]
    fn without_a_batch_a_plan_is_the_launch_or_its_violations(
        request in request(), device in device(), kernel in kernel(),
    ) {
        let limits = LaunchLimits::new(device, kernel);
        let plan = Plan::new(&request, None, &limits, gridguard::Choice::AUTOMATIC);
        match (plan, validate(&request, &limits)) {
            (Ok(plan), Ok(launch)) => {
                let launches: Vec<_> = plan.launches().map(|one| one.launch).collect();
                prop_assert_eq!(launches, [launch]);
                prop_assert_eq!((plan.items(), plan.strategy()), (1, Way::Whole));
            }
            (Err(planned), Err(validated)) => prop_assert_eq!(planned, validated),
            (plan, launch) => prop_assert!(false, "{plan:?}, {launch:?}"),
        }
    }
}

/// Counts what the cases above come to, so that a change of the generators cannot leave one kind
/// of plan untested.
#[test]
fn the_cases_come_to_every_kind_of_plan_and_refusal() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut ways, mut rules) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..20_000 {
        let case = case().new_tree(&mut runner).expect("a case").current();
        match case.plan(&case.limits()) {
            Ok(plan) if plan.is_empty() => ways.insert("empty".to_owned()),
            Ok(plan) => ways.insert(plan.strategy().to_string()),
            Err(violations) => {
                rules.extend(violations.iter().map(|violation| violation.rule));
                continue;
            }
        };
    }
    assert_eq!(ways.into_iter().collect::<Vec<_>>(), ["chunked", "empty", "folded", "whole"]);
    // What a device holds at once only a driver can tell.
    rules.extend([Rule::ClusterResidency, Rule::CooperativeResidency]);
    let missing: Vec<_> = Rule::ALL.iter().filter(|rule| !rules.contains(rule)).collect();
    assert!(missing.is_empty(), "no case breaks {missing:?}");
}
