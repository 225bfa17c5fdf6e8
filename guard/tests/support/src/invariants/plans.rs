//! Plans of any request and batch: plans are legal and whole, and nothing refused could be planned.

use gridguard::{
    Choice, Dim3, LaunchLimits, Plan, PlannedLaunch, Rule, Strategy, Violations, validate,
};

use super::bytes::Bytes;
use super::case::case;
pub use super::case::{Case, cases};

/// Makes a case of `bytes` and plans it, with its batch and without.
pub fn check(bytes: &[u8]) {
    let case = case(&mut Bytes::new(bytes));
    what_is_planned_is_legal_and_what_is_refused_is_hopeless(&case);
    without_a_batch_a_plan_is_the_launch(&case);
}

/// Every item once, in legal launches of the wanted way and size; or a reason why that cannot be.
pub fn what_is_planned_is_legal_and_what_is_refused_is_hopeless(case: &Case) {
    let limits = case.limits();
    match case.plan(&limits) {
        Ok(plan) => check_plan(case, &limits, &plan),
        Err(violations) => check_refusal(case, &violations),
    }
}

/// Without a batch a plan is the launch itself, or its violations.
pub fn without_a_batch_a_plan_is_the_launch(case: &Case) {
    let (request, limits) = (&case.request, case.limits());
    let plan = Plan::new(request, None, &limits, Choice::AUTOMATIC);
    match (plan, validate(request, &limits)) {
        (Ok(plan), Ok(launch)) => {
            let launches: Vec<_> = plan.launches().map(|one| one.launch).collect();
            assert_eq!(launches, [launch]);
            assert_eq!((plan.items(), plan.strategy()), (1, Strategy::Whole));
        }
        (Err(planned), Err(validated)) => assert_eq!(planned, validated),
        (plan, launch) => panic!("{plan:?}, {launch:?}"),
    }
}

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
        Strategy::Folded => case.folded().expect("it may be folded").grid,
        _ => case.request.grid.with(axis, u64::try_from(blocks).expect("within 32 bits")),
    };
    assert_eq!(grid, expected);
    if plan.strategy() == Strategy::Chunked {
        assert!(chunk.start.is_multiple_of(case.batch.align.max(1)), "{chunk:?} is not aligned");
        assert!(case.batch.starts_a_block(chunk.start), "{chunk:?} shares a block");
    }
}

fn check_plan(case: &Case, limits: &LaunchLimits, plan: &Plan) {
    assert!(case.covers(), "the grid is not that of the batch");
    assert_eq!(plan.items(), case.batch.items);
    assert_eq!(plan.is_empty(), case.batch.items == 0);
    let mut next = 0;
    for (place, one) in (0..).zip(plan.launches().take(WALKED)) {
        assert_eq!((one.chunk.index, one.chunk.start), (place, next), "a gap or an overlap");
        next = one.chunk.end();
        check_launch(case, limits, plan, &one);
    }
    if plan.launches().nth(WALKED).is_none() {
        assert_eq!(next, case.batch.items, "items are missing at the end");
    } else {
        let last = plan.at(plan.len() - 1).expect("a last one").chunk;
        assert_eq!(last.end(), case.batch.items, "items are missing at the end");
    }
    match plan.strategy() {
        Strategy::Whole => assert!(plan.is_empty() || case.whole_is_right()),
        Strategy::Folded => {
            let chosen = case.preference.strategy == Some(Strategy::Folded);
            assert!(chosen || !case.whole_is_right(), "folded without need");
        }
        _ => {
            assert!(!case.whole_is_right() && !case.request.cooperative);
            let chosen = case.preference.strategy == Some(Strategy::Chunked);
            assert!(chosen || case.folded().is_none(), "one folded launch would do");
            assert_eq!(u128::from(plan.len()), case.fewest_chunks());
        }
    }
    if plan.strategy() != Strategy::Chunked {
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
    // The cases' kernels were not rewritten.
    let shifted = case.preference.strategy == Some(Strategy::Shifted);
    assert!(shifted || !rules.contains(&Rule::ShiftUnavailable), "not asked for: {violations}");
    let chosen = shifted || case.preference.strategy == Some(Strategy::Folded);
    assert!(!case.whole_is_right() || chosen, "one launch would do: {violations}");
    for rule in case.broken() {
        assert!(violations.contains(rule), "{rule} is not told: {violations}");
    }
    let may_split = matches!(case.preference.strategy, None | Some(Strategy::Chunked));
    let may_fold = matches!(case.preference.strategy, None | Some(Strategy::Folded));
    if case.only_the_axis_overflows() {
        if may_fold {
            assert_eq!(case.folded(), None, "folding would do: {violations}");
        }
        if may_split && !case.request.cooperative {
            assert_eq!(case.smallest_chunk(), None, "chunks would do: {violations}");
        }
    }
}
