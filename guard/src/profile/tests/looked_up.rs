//! Lookups.

use proptest::prelude::*;

use super::super::*;
use super::{device, document, entry, environment, key};
use crate::{Choice, DeviceLimits, Guard, Strategy as PlanStrategy};
use std::sync::Arc;

fn profile(entries: impl IntoIterator<Item = Entry>) -> Profile {
    let (profile, notices) = Profile::from_document(document(entries), &device(), &environment());
    assert_eq!(notices, []);
    profile
}

/// How the profile matches rows and columns, and the rows of the matching entry.
fn found(profile: &Profile, rows: u64, columns: u64) -> (Match, Option<u64>) {
    let tuned = profile.lookup(&key("copy"), &[rows, columns]);
    (tuned.matched, tuned.entry.map(|entry| entry.shape[0].1))
}

#[test]
fn the_same_sizes_match_exactly_and_give_choice_and_parameters() {
    let profile = profile([entry("copy", 7, 5), entry("copy", 6, 5)]);
    let tuned = profile.lookup(&key("copy"), &[7, 5]);
    assert_eq!(tuned.matched, Match::Exact);
    assert_eq!(tuned.choice(), Choice::at_most(7).strategy(PlanStrategy::Chunked));
    assert_eq!(tuned.parameters(), [("warps".to_owned(), 4)]);
    assert_eq!((tuned.layer, tuned.degraded), (Some(Layer::Explicit), false));
}

#[test]
fn the_nearest_entry_of_the_bucket_is_preferred_to_a_nearer_neighbour() {
    let profile = profile([entry("copy", 1023, 5), entry("copy", 1500, 5), entry("copy", 2000, 5)]);
    assert_eq!(found(&profile, 1024, 5), (Match::Bucket, Some(1500)));
    assert_eq!(found(&profile, 1900, 5), (Match::Bucket, Some(2000)));
}

#[test]
fn at_equal_distances_the_smaller_shape_is_preferred() {
    let profile = profile([entry("copy", 64, 1), entry("copy", 256, 1)]);
    let distance_millioctaves = 1000;
    let neighbour = Match::Neighbour { distance_millioctaves };
    assert_eq!(found(&profile, 128, 1), (neighbour, Some(64)));
}

#[test]
fn a_size_of_zero_matches_only_zero() {
    let tuned = profile([entry("copy", 64, 0), entry("copy", 64, 4)]);
    assert_eq!(found(&tuned, 64, 0), (Match::Exact, Some(64)));
    assert_eq!(found(&tuned, 100, 0), (Match::Bucket, Some(64)));
    let columns = |tuned: TunedChoice<'_>| tuned.entry.map(|entry| entry.shape[1].1);
    assert_eq!(columns(tuned.lookup(&key("copy"), &[100, 0])), Some(0));
    assert_eq!(columns(tuned.lookup(&key("copy"), &[100, 5])), Some(4));
    assert_eq!(found(&tuned, 64, 1).0, Match::Default(DefaultReason::NoNeighbour));
    let outside = |size, bits| Match::Default(DefaultReason::OutOfRange { index: 1, size, bits });
    let padded = profile([entry("copy", 64, 1), entry("copy", 128, 4)]);
    assert_eq!(found(&padded, 64, 0).0, outside(0, (1, 3)));
    let bare = profile([entry("copy", 64, 0)]);
    assert_eq!(found(&bare, 64, 1).0, outside(1, (0, 0)));
    let two = profile([entry("copy", 64, 0), entry("copy", 256, 0)]);
    let neighbour = Match::Neighbour { distance_millioctaves: 1000 };
    assert_eq!(found(&two, 128, 0), (neighbour, Some(64)));
}

#[test]
fn a_lookup_without_a_match_gives_the_reason() {
    let profile = profile([entry("copy", 64, 1)]);
    let why = |key: &Key, sizes: &[u64]| profile.lookup(key, sizes).matched;
    let edited = Key { source: "edited".into(), ..key("copy") };
    let graph = Policy { submission: Submission::Graph, ..Policy::default() };
    assert_eq!(why(&key("sum"), &[64, 1]), Match::Default(DefaultReason::NoEntries));
    assert_eq!(why(&edited, &[64, 1]), Match::Default(DefaultReason::OtherSource));
    let other = Key { policy: graph, ..edited };
    assert_eq!(why(&other, &[64, 1]), Match::Default(DefaultReason::NoEntries));
    let count = DefaultReason::SizeCount { expected: 2, given: 3 };
    assert_eq!(why(&key("copy"), &[64, 1, 1]), Match::Default(count));
    assert_eq!(why(&key("copy"), &[0, 1]), Match::Default(DefaultReason::ZeroSize));
    assert_eq!(
        why(&key("copy"), &[]),
        Match::Default(DefaultReason::SizeCount { expected: 2, given: 0 })
    );
    let tuned = profile.lookup(&key("sum"), &[64]);
    assert_eq!((tuned.choice(), tuned.parameters()), (Choice::AUTOMATIC, &[][..]));
}

#[test]
fn sizes_have_the_names_of_the_entries() {
    let profile = profile([entry("copy", 64, 1), entry("sum", 128, 1)]);
    let names = ["rows", "columns"].map(str::to_owned);
    assert_eq!(profile.size_names(&key("copy")), Some(&names[..]));
    assert_eq!(profile.size_names(&key("gather")), None);
}

#[test]
fn a_profile_of_another_device_is_not_used() {
    let host = device().on_host();
    let (profile, notices) =
        Profile::from_document(document([entry("copy", 64, 1)]), &host, &environment());
    assert!(profile.is_empty());
    assert!(matches!(
        &notices[..],
        [ProfileNotice::OtherDevice(DeviceMismatch { property: "the backend", .. })]
    ));
    assert_eq!(notices[0].level(), NoticeLevel::Reject);
}

#[test]
fn another_major_driver_degrades_its_own_entries_alone() {
    let mut old = entry("copy", 64, 1);
    old.found.driver = "12.9".into();
    let mut silent = entry("copy", 4096, 1);
    silent.found.driver = String::new();
    let document = document([old, silent, entry("copy", 512, 1)]);
    let running = Environment { driver: "13.1".into(), ..environment() };
    let (profile, notices) = Profile::from_document(document, &device(), &running);
    let levels: Vec<_> = notices.iter().map(ProfileNotice::level).collect();
    assert_eq!(levels, [NoticeLevel::Degrade, NoticeLevel::Note]);
    let degraded = |rows| profile.lookup(&key("copy"), &[rows, 1]).degraded;
    assert_eq!((degraded(64), degraded(512), degraded(4096)), (true, false, false));
}

#[test]
fn other_compilers_and_tuners_are_noted_and_unknown_versions_are_not() {
    let document = document([entry("copy", 64, 1)]);
    let running =
        Environment { driver: String::new(), compiler: "12.8".into(), tuner: "0.2.0".into() };
    let (_, notices) = Profile::from_document(document, &device(), &running);
    let components: Vec<_> = notices
        .iter()
        .map(|notice| match notice {
            ProfileNotice::OtherVersion { component, .. } => *component,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(components, ["compiler", "tuner"]);
    assert!(notices.iter().all(|notice| notice.level() == NoticeLevel::Note));
}

#[test]
fn sizes_of_other_names_do_not_mix() {
    let mut other = entry("copy", 64, 2);
    other.shape = vec![("columns".into(), 64), ("rows".into(), 2)];
    let document = document([entry("copy", 64, 1), other]);
    let (profile, notices) = Profile::from_document(document, &device(), &environment());
    assert!(matches!(&notices[..], [ProfileNotice::OtherSizes { entries: 1, .. }]), "{notices:?}");
    assert_ne!(profile.lookup(&key("copy"), &[64, 2]).matched, Match::Exact);
}

#[test]
fn a_guard_logs_what_is_not_exact() {
    let misses = Arc::new(MissLog::new(10));
    let guard = Guard::host(DeviceLimits::any_device());
    assert_eq!(guard.identity(), device().on_host());
    let names = ["rows", "columns"];
    let none = guard.tuned(&key("copy"), &names, &[64, 1]).matched;
    assert_eq!(none, Match::Default(DefaultReason::NoProfile));
    let profile = Arc::new(profile([entry("copy", 64, 1)]));
    let guard = guard.with_profile(profile).with_miss_log(Arc::clone(&misses));
    assert_eq!(guard.tuned(&key("copy"), &names, &[64, 1]).matched, Match::Exact);
    assert_eq!(misses.snapshot(), []);
    assert_eq!(guard.tuned(&key("copy"), &names, &[65, 1]).matched, Match::Bucket);
    assert_eq!(misses.snapshot()[0].shape, [("rows".to_owned(), 65), ("columns".to_owned(), 1)]);
    assert!(guard.misses().is_some());
}

/// How the nearest entry matches, by examining every entry.
fn by_exhaustion(tuned: &[[u64; 2]], asked: [u64; 2]) -> Option<Match> {
    let each = |one: &[u64; 2], test: fn(u64, u64) -> bool| {
        test(one[0], asked[0]) && test(one[1], asked[1])
    };
    if tuned.contains(&asked) {
        return Some(Match::Exact);
    }
    let bit_length =
        |size: u64| u8::try_from(u64::BITS - size.leading_zeros()).expect("at most 64");
    for (index, size) in (0..).zip(asked) {
        let lengths = tuned.iter().map(|one| bit_length(one[usize::from(index > 0)]));
        let bits = (lengths.clone().min()?, lengths.max()?);
        if !(bits.0..=bits.1).contains(&bit_length(size)) {
            return Some(Match::Default(DefaultReason::OutOfRange { index, size, bits }));
        }
    }
    if tuned.iter().any(|one| each(one, |a, b| a.checked_ilog2() == b.checked_ilog2())) {
        return Some(Match::Bucket);
    }
    let octave = |one: &[u64; 2]| each(one, |a, b| a <= 2 * b && b <= 2 * a);
    // The distance is rounded, so it is compared apart.
    tuned.iter().any(octave).then_some(Match::Neighbour { distance_millioctaves: 0 })
}

proptest! {
    #[test]
    fn every_lookup_is_by_exhaustion(
        tuned in prop::collection::vec([1..3000_u64, 0..40_u64], 1..20),
        asked in [1..4000_u64, 0..50_u64],
    ) {
        let profile = profile(tuned.iter().map(|[rows, columns]| entry("copy", *rows, *columns)));
        let found = profile.lookup(&key("copy"), &asked);
        let log = |[rows, columns]: [u64; 2]| [rows, columns].map(|size| f64::from(u32::try_from(size.max(1)).expect("small")).log2());
        let distance = |one: [u64; 2]| {
            let (one, asked) = (log(one), log(asked));
            (one[0] - asked[0]).abs() + (one[1] - asked[1]).abs()
        };
        let expected = by_exhaustion(&tuned, asked);
        match found.matched {
            Match::Neighbour { distance_millioctaves } => {
                let nearest = tuned.iter().filter(|one| {
                    (one[0] <= 2 * asked[0] && asked[0] <= 2 * one[0])
                        && (one[1] <= 2 * asked[1] && asked[1] <= 2 * one[1])
                }).map(|one| distance(*one)).fold(f64::INFINITY, f64::min);
                prop_assert!((f64::from(distance_millioctaves) / 1000.0 - nearest).abs() < 0.002);
                let zero = Match::Neighbour { distance_millioctaves: 0 };
                prop_assert_eq!(expected, Some(zero));
            }
            matched => {
                let none = Match::Default(DefaultReason::NoNeighbour);
                prop_assert_eq!(matched, expected.unwrap_or(none));
            }
        }
        prop_assert_eq!(found.entry.is_some(), found.matched.kind() != MatchKind::Default);
    }
}

#[test]
fn a_confirmed_problem_has_the_default_and_hides_lower_layers_and_is_no_miss() {
    let confirm = |one: Entry| Entry::confirmed(one.key, one.shape, one.found.date);
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, document: &Document| {
        let folder = folder.path().join(name);
        publish(&folder.join(document.device().file_name()), document).expect("written");
        folder
    };
    let high = write("high", &document([confirm(entry("copy", 64, 64)), entry("copy", 1024, 64)]));
    let low = write("low", &document([entry("copy", 64, 64), entry("copy", 16, 64)]));
    let layers = Layers::new().user_at(high).shipped(low);
    let profile = layers.load(&device(), &environment()).profile;
    let confirmed = |kind| Match::Default(DefaultReason::Confirmed { kind });
    for (rows, matched) in [
        (64, confirmed(MatchKind::Exact)),
        (100, confirmed(MatchKind::Bucket)),
        (1024, Match::Exact),
        (16, Match::Exact),
    ] {
        let found = profile.lookup(&key("copy"), &[rows, 64]);
        assert_eq!(found.matched, matched, "{rows}");
        let is_default = matches!(matched, Match::Default(_));
        assert_eq!(
            (found.entry.is_none(), found.parameters().is_empty()),
            (is_default, is_default)
        );
        assert!(found.layer.is_some());
    }
    let misses = MissLog::new(8);
    misses.record(&key("copy"), &["rows"], &[64], confirmed(MatchKind::Exact).kind());
    assert!(misses.snapshot().is_empty());
}
