//! Merging and comparing.

use proptest::prelude::*;

use super::super::*;
use super::generate::overlapping;
use super::{device, document, entry, environment};

fn merged(one: &Document, other: &Document) -> (Document, Vec<Conflict>) {
    let mut merged = one.clone();
    let conflicts = merged.merge(other).expect("one device");
    (merged, conflicts)
}

proptest! {
    #[test]
    fn the_order_of_a_merge_does_not_matter(one in overlapping(), other in overlapping()) {
        let (forth, back) = (merged(&one, &other), merged(&other, &one));
        prop_assert_eq!(forth, back);
    }

    #[test]
    fn the_grouping_of_merges_does_not_matter(
        a in overlapping(),
        b in overlapping(),
        c in overlapping(),
    ) {
        let left = merged(&merged(&a, &b).0, &c).0;
        let right = merged(&a, &merged(&b, &c).0).0;
        prop_assert_eq!(left.to_ron(), right.to_ron());
    }

    #[test]
    fn a_merge_with_itself_changes_nothing(one in overlapping()) {
        let (twice, conflicts) = merged(&one, &one);
        prop_assert_eq!(&twice, &one);
        prop_assert_eq!(conflicts, []);
        prop_assert_eq!(one.diff(&twice), []);
    }

    #[test]
    fn a_merge_loses_no_shape_and_makes_up_no_entry(one in overlapping(), other in overlapping()) {
        let (both, conflicts) = merged(&one, &other);
        for entry in one.entries().iter().chain(other.entries()) {
            prop_assert!(both.get(&entry.key, &entry.shape).is_some());
        }
        for entry in both.entries() {
            prop_assert!(one.entries().contains(entry) || other.entries().contains(entry));
        }
        let changed = one.diff(&other).iter().filter(|difference| {
            !matches!(difference, Difference::OnlyFirst(_) | Difference::OnlySecond(_))
        }).count();
        prop_assert_eq!(conflicts.len(), changed);
    }
}

#[test]
fn the_later_entry_stays_and_both_are_told() {
    let early = entry("copy", 7, 5);
    let mut late = Entry { choice: StoredChoice::Whole, parameters: vec![], ..early.clone() };
    late.found.date = "2026-11-21T00:00:00Z".into();
    late.chosen.median_ns = 130;
    let (both, conflicts) = merged(&document([late.clone()]), &document([early]));
    assert_eq!(both.entries(), [late]);
    assert_eq!(
        conflicts[0].to_string(),
        "copy f16, cold-eager, throughput, rows 7, columns 5: kept whole in 130 ns \
         (2026-11-21T00:00:00Z), dropped chunks of 7 with warps 4 in 100 ns (2026-11-20T12:00:00Z)"
    );
}

#[test]
fn of_the_same_date_more_samples_stay() {
    let few = entry("copy", 7, 5);
    let mut many = few.clone();
    many.chosen.samples += 1;
    many.chosen.median_ns = 1;
    let (both, conflicts) = merged(&document([few]), &document([many.clone()]));
    assert_eq!((both.entries(), conflicts.len()), (&[many][..], 1));
}

#[test]
fn documents_of_two_devices_do_not_merge() {
    let mut one = document([entry("copy", 7, 5)]);
    let before = one.clone();
    let host = Document::new(device().on_host(), environment());
    let refused = one.merge(&host).expect_err("the host is no device");
    assert!(matches!(refused, MergeError::OtherDevice(Mismatch::Backend { .. })));
    assert_eq!(one, before);
}

#[test]
fn an_alias_merges_and_both_names_are_kept() {
    let other = DeviceIdentity { name: "a device like it".into(), ..device() };
    let alike = Document::new(other, environment()).with_aliases([device().name]);
    let (both, _) = merged(&document([entry("copy", 7, 5)]), &alike);
    assert_eq!(both.device().name, "a device like it");
    assert_eq!(both.aliases(), [device().name]);
    assert_eq!(both, merged(&alike, &document([entry("copy", 7, 5)])).0);
}

#[test]
fn a_difference_says_what_changed() {
    let (first, second) = (entry("a", 1, 1), entry("b", 1, 1));
    let choice = Entry { choice: StoredChoice::Whole, ..second.clone() };
    let times = Entry { default: Summary::default(), ..second.clone() };
    let mut found = second.clone();
    found.found.candidates += 1;
    let one = document([first.clone(), second.clone()]);
    let differs = |other: Entry, expected: fn(&Difference<'_>) -> bool| {
        let other = document([first.clone(), other, entry("c", 1, 1)]);
        let differences = one.diff(&other);
        assert!(expected(&differences[0]), "{differences:?}");
        assert!(matches!(differences[1], Difference::OnlySecond(_)), "{differences:?}");
        assert_eq!(differences.len(), 2);
        assert!(matches!(other.diff(&one)[1], Difference::OnlyFirst(_)));
    };
    differs(choice, |one| matches!(one, Difference::Choice(..)));
    differs(times, |one| matches!(one, Difference::Times(..)));
    differs(found, |one| matches!(one, Difference::Provenance(..)));
}
