//! Guarding a legal launch allocates nothing.

use gridguard::profile::{
    DefaultReason, Document, Environment, Key, Match, MatchKind, MissLog, Profile,
};
use gridguard::{
    Axis, BatchAxis, Choice, DeviceLimits, Dim3, Guard, KernelLimits, LaunchLimits, LaunchRequest,
    Plan, RawArgs, Strategy, validate,
};
use gridguard_test_support::allocator::allocations_of;

use crate::profiles::{entry, key};

fn limits() -> LaunchLimits {
    LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("attention"))
}

/// Temporal attention: `items` of five heads each on y.
fn attention(items: u64) -> (LaunchRequest, BatchAxis) {
    let request = LaunchRequest::new(Dim3::new(1, 5 * items, 1), Dim3::new(128, 1, 1))
        .dynamic_shared_bytes(16_384)
        .parameter_bytes(64);
    (request, BatchAxis::new(Axis::Y, items).blocks_per_item(5))
}

#[test]
fn the_counter_sees_the_violations_of_an_illegal_launch() {
    let limits = limits();
    let (request, _) = attention(15_360);
    let (answer, allocations) = allocations_of(|| validate(&request, &limits));
    assert!(answer.is_err());
    assert!(allocations > 0, "or the tests below prove nothing");
}

#[test]
fn validating_a_legal_launch_allocates_nothing() {
    let device = gridguard::catalog::gpu("h200").expect("catalogued").limits.clone();
    let limits = [limits(), LaunchLimits::new(device, KernelLimits::unknown("attention"))];
    let cluster = attention(8).0.cluster(Dim3::new(1, 8, 1)).cooperative();
    for (request, limits) in [attention(13_107).0, cluster].iter().zip(&limits) {
        let (legal, allocations) = allocations_of(|| validate(request, limits).is_ok());
        assert_eq!((legal, allocations), (true, 0));
    }
}

#[test]
fn planning_and_walking_any_number_of_launches_allocates_nothing() {
    let (limits, any) = (limits(), Choice::AUTOMATIC);
    let folded = |batch: BatchAxis| batch.foldable();
    for (items, change, choice, strategy, launches) in [
        (0, None, any, Strategy::Whole, 0),
        (13_107, None, any, Strategy::Whole, 1),
        (15_360, None, any, Strategy::Chunked, 2),
        (15_360, None, Choice::at_most(3), Strategy::Chunked, 5120),
        (15_360, Some(folded), any, Strategy::Folded, 1),
    ] {
        let (request, batch) = attention(items);
        let batch = change.map_or(batch, |change| change(batch));
        let (walked, allocations) = allocations_of(|| {
            let plan = Plan::new(&request, Some(&batch), &limits, choice).expect("legal");
            let blocks =
                plan.launches().map(|one| u64::from(one.launch.grid().iter().product::<u32>()));
            (plan.strategy(), plan.len(), blocks.sum::<u64>())
        });
        assert_eq!((walked, allocations), ((strategy, launches, 5 * items), 0));
    }
}

#[test]
fn building_arguments_allocates_nothing() {
    let settings = [0_u8; 24];
    let (len, allocations) = allocations_of(|| {
        let mut args = RawArgs::new();
        args.items_at(1 << 40, 2048)
            .items_within(1 << 41, 2048, 2048, 1 << 30)
            .value(0.125_f32)
            .bytes(&settings)
            .offset()
            .length_as::<u32>();
        args.len()
    });
    assert_eq!((len, allocations), (6, 0));
}

#[test]
fn a_guard_that_validates_and_plans_legal_launches_allocates_nothing() {
    let guard = Guard::host(DeviceLimits::any_device());
    let limits = guard.limits_for(KernelLimits::unknown("attention"));
    let (whole, _) = attention(13_107);
    let (large, batch) = attention(15_360);
    let (legal, allocations) = allocations_of(|| {
        let valid = guard.validate(&whole, &limits).is_ok();
        let plan = guard.plan(&large, Some(&batch), &limits, Choice::AUTOMATIC);
        valid && plan.is_ok_and(|plan| plan.len() == 2)
    });
    assert!(legal);
    assert_eq!(allocations, 0);
}

/// A profile of one kernel with 64 and 4,096 rows.
fn profile(guard: &Guard) -> Profile {
    let mut document = Document::new(guard.identity(), Environment::default());
    for rows in [64, 4096] {
        let mut entry = entry("copy", rows);
        entry.shape.push(("columns".into(), 5));
        entry.parameters.push(("warps".into(), 4));
        document.insert(entry).expect("within bounds");
    }
    Profile::from_document(document, &guard.identity(), &Environment::default()).0
}

#[test]
fn every_kind_of_lookup_allocates_nothing() {
    let guard = Guard::host(DeviceLimits::any_device());
    let profile = profile(&guard);
    let edited = Key { source: "edited".into(), ..key("copy") };
    let (copy, sum) = (key("copy"), key("sum"));
    for (key, rows, kind) in [
        (&copy, 64, Match::Exact),
        (&copy, 65, Match::Bucket),
        (&copy, 128, Match::Neighbour { distance_millioctaves: 1000 }),
        (&copy, 1000, Match::Default(DefaultReason::NoNeighbour)),
        (
            &copy,
            9000,
            Match::Default(DefaultReason::OutOfRange { index: 0, size: 9000, bits: (7, 13) }),
        ),
        (&sum, 64, Match::Default(DefaultReason::NoEntries)),
        (&edited, 64, Match::Default(DefaultReason::OtherSource)),
    ] {
        let (matched, allocations) = allocations_of(|| {
            let answer = profile.lookup(key, &[rows, 5]);
            let _ = (answer.choice(), answer.parameters());
            answer.matched
        });
        assert_eq!((matched, allocations), (kind, 0));
    }
}

#[test]
fn a_guard_allocates_for_a_miss_the_first_time_alone() {
    let guard = Guard::host(DeviceLimits::any_device());
    let profile = profile(&guard);
    let guard = guard.with_profile(profile.into()).with_miss_log(MissLog::new(10).into());
    let copy = key("copy");
    let allocations = |rows| {
        let ask = || guard.tuned(&copy, &["rows", "columns"], &[rows, 5]).matched.kind();
        allocations_of(ask)
    };
    assert_eq!(allocations(64), (MatchKind::Exact, 0));
    assert!(allocations(65).1 > 0, "or the log records nothing");
    assert_eq!(allocations(65), (MatchKind::Bucket, 0));
}
