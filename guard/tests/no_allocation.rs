//! Guarding a legal launch allocates nothing.

use gridguard::profile::{
    DefaultReason, Document, Entry, Environment, Key, Match, MatchKind, MissLog, Profile,
    Provenance, StoredChoice, Summary,
};
use gridguard::{
    Axis, BatchAxis, Choice, DeviceLimits, Dim3, Guard, KernelLimits, LaunchLimits, LaunchRequest,
    Plan, RawArgs, Strategy, validate,
};
use gridguard_test_support::allocator::allocations_of;

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
    let limits = limits();
    let (request, _) = attention(13_107);
    let (answer, allocations) = allocations_of(|| validate(&request, &limits));
    assert!(answer.is_ok());
    assert_eq!(allocations, 0);
}

#[test]
fn validating_a_cluster_launch_allocates_nothing() {
    let device = gridguard::catalog::gpu("h200").expect("catalogued").limits.clone();
    let limits = LaunchLimits::new(device, KernelLimits::unknown("attention"));
    let (request, _) = attention(8);
    let request = request.cluster(Dim3::new(1, 8, 1)).cooperative();
    let (answer, allocations) = allocations_of(|| validate(&request, &limits));
    assert!(answer.is_ok());
    assert_eq!(allocations, 0);
}

#[test]
fn planning_and_walking_one_launch_allocates_nothing() {
    walks_without_allocation(13_107, Choice::AUTOMATIC, Strategy::Whole, 1);
}

#[test]
fn planning_and_walking_two_chunks_allocates_nothing() {
    walks_without_allocation(15_360, Choice::AUTOMATIC, Strategy::Chunked, 2);
}

#[test]
fn planning_and_walking_thousands_of_chunks_allocates_nothing() {
    walks_without_allocation(15_360, Choice::at_most(3), Strategy::Chunked, 5120);
}

#[test]
fn an_empty_plan_allocates_nothing() {
    walks_without_allocation(0, Choice::AUTOMATIC, Strategy::Whole, 0);
}

fn walks_without_allocation(items: u64, choice: Choice, strategy: Strategy, launches: u64) {
    let limits = limits();
    let (request, batch) = attention(items);
    let (walked, allocations) = allocations_of(|| {
        let plan = Plan::new(&request, Some(&batch), &limits, choice).expect("legal");
        let blocks: u32 = plan.launches().map(|one| one.launch.grid()[1]).sum();
        (plan.strategy(), plan.len(), u64::from(blocks))
    });
    assert_eq!(walked, (strategy, launches, 5 * items));
    assert_eq!(allocations, 0);
}

#[test]
fn folding_allocates_nothing() {
    let limits = limits();
    let (request, batch) = attention(15_360);
    let batch = batch.foldable();
    let (grid, allocations) = allocations_of(|| {
        let plan = Plan::new(&request, Some(&batch), &limits, Choice::AUTOMATIC).expect("legal");
        plan.launches().next().map(|one| one.launch.grid())
    });
    assert_eq!(grid, Some([76_800, 1, 1]));
    assert_eq!(allocations, 0);
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

fn key(kernel: &str) -> Key {
    Key { kernel: kernel.into(), source: "0f1e".into(), dtypes: "f16".into(), ..Key::default() }
}

/// A profile of one kernel with 64 and 4,096 rows.
fn profile(guard: &Guard) -> Profile {
    let mut document = Document::new(guard.identity(), Environment::default());
    for rows in [64, 4096] {
        let entry = Entry {
            key: key("copy"),
            shape: vec![("rows".into(), rows), ("columns".into(), 5)],
            choice: StoredChoice::Whole,
            parameters: vec![("warps".into(), 4)],
            launches: 1,
            chosen: Summary::default(),
            default: Summary::default(),
            found: Provenance::default(),
        };
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
