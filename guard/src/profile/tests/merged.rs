//! Merging and comparing.

use proptest::prelude::*;

use super::super::*;
use super::generate::overlapping;
use super::{device, document, entry, environment};

fn merged(one: &Document, other: &Document) -> (Document, Vec<MergeConflict>) {
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
    fn a_merge_with_itself_changes_nothing(one in overlapping()) {
        let (twice, conflicts) = merged(&one, &one);
        prop_assert_eq!(&twice, &one);
        prop_assert_eq!(conflicts, []);
    }

    #[test]
    fn a_merge_loses_no_shape_and_invents_no_entry(one in overlapping(), other in overlapping()) {
        let (both, conflicts) = merged(&one, &other);
        for entry in one.entries().iter().chain(other.entries()) {
            prop_assert!(both.get(&entry.key, &entry.shape).is_some());
        }
        for entry in both.entries() {
            prop_assert!(one.entries().contains(entry) || other.entries().contains(entry));
        }
        let changed = one.entries().iter().filter(|first| {
            other.get(&first.key, &first.shape).is_some_and(|second| second != *first)
        }).count();
        prop_assert_eq!(conflicts.len(), changed);
    }
}

#[test]
fn the_later_entry_is_kept_and_both_are_reported() {
    let early = entry("copy", 7, 5);
    let mut late = Entry { choice: StoredChoice::Whole, parameters: vec![], ..early.clone() };
    late.found.date = "2026-11-21T00:00:00Z".into();
    late.chosen.median_ns = 130;
    let (both, conflicts) = merged(&document([late.clone()]), &document([early]));
    assert_eq!(both.entries(), [late]);
    assert_eq!(
        conflicts[0].to_string(),
        "copy f16, cold-eager, throughput, rows 7, columns 5: kept whole in 130 ns \
         (2026-11-21T00:00:00Z), dropped chunks of 7 with warps 4 in 100 ns (2026-11-20T12:00:00Z): the \
         kept one is later"
    );
    assert_eq!(conflicts[0].reason(), MergeReason::Date);
    let MergeConflict { kept, dropped } = conflicts[0].clone();
    let mut replaced = MergeConflict { kept: dropped, dropped: kept };
    assert_eq!(replaced.reason(), MergeReason::Replaced);
    assert!(replaced.to_string().ends_with(": the kept one replaces it"), "{replaced}");
    replaced.dropped.found.date.clone_from(&replaced.kept.found.date);
    replaced.dropped.chosen.samples += 1;
    assert_eq!(replaced.reason(), MergeReason::Replaced);
}

#[test]
fn of_the_same_date_the_entry_with_more_samples_is_kept() {
    let few = entry("copy", 7, 5);
    let mut many = few.clone();
    many.chosen.samples += 1;
    many.chosen.median_ns = 1;
    let (both, conflicts) = merged(&document([few]), &document([many.clone()]));
    assert_eq!((both.entries(), conflicts.len()), (&[many.clone()][..], 1));
    assert_eq!(conflicts[0].reason(), MergeReason::Samples);
    assert!(conflicts[0].to_string().ends_with(": the kept one has more samples"));
    let mut slower = many.clone();
    slower.chosen.median_ns = 2;
    let conflicts = merged(&document([slower]), &document([many.clone()])).1;
    assert_eq!(conflicts[0].reason(), MergeReason::Order);
    assert!(conflicts[0].to_string().ends_with(": date and number of samples are the same"));
    let mut undated = many.clone();
    undated.found.date.clear();
    let (both, conflicts) = merged(&document([undated]), &document([many.clone()]));
    assert_eq!((both.entries(), conflicts[0].reason()), (&[many][..], MergeReason::Date));
    assert!(conflicts[0].to_string().contains(" in 1 ns (no date)"), "{}", conflicts[0]);
}

#[test]
fn documents_of_two_devices_do_not_merge() {
    let mut one = document([entry("copy", 7, 5)]);
    let before = one.clone();
    let host = Document::new(device().on_host(), environment());
    let refused = one.merge(&host).expect_err("the host is no device");
    assert!(matches!(
        refused.kind(),
        ProfileErrorKind::OtherDevice {
            document: 1,
            mismatch: DeviceMismatch { property: "the backend", .. }
        }
    ));
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

/// A document of a device of this name with these aliases and so much memory, with two entries.
fn named(name: &str, aliases: &[&str], memory_bytes: u64, date: u8) -> Document {
    let device = DeviceIdentity { name: name.into(), memory_bytes, ..device() };
    let aliases = aliases.iter().map(|alias| (*alias).to_owned());
    let mut document = Document::new(device, environment()).with_aliases(aliases);
    for mut entry in [entry("copy", 7, 5), entry(name, 7, 5)] {
        entry.found.date = format!("2026-11-{date:02}T12:00:00Z");
        entry.launches = date.into();
        document.insert(entry).expect("within the limits");
    }
    document
}

/// The file and the conflicts, or the document of another device and what differs.
fn all_merged(
    documents: &[Document],
) -> Result<(String, Vec<MergeConflict>), (usize, DeviceMismatch)> {
    let (first, others) = documents.split_first().expect("one at least");
    let mut all = first.clone();
    match all.merge_all(others) {
        Ok(conflicts) => Ok((all.to_string(), conflicts)),
        Err(refused) => {
            assert_eq!(&all, first, "nothing changed");
            let ProfileErrorKind::OtherDevice { document, mismatch } = refused.kind() else {
                panic!("{refused}");
            };
            Err((*document, mismatch.clone()))
        }
    }
}

#[test]
fn devices_linked_through_others_merge_in_any_order() {
    let chain =
        [named("a", &["b"], 1600, 1), named("b", &["c"], 1600, 2), named("c", &[], 1600, 3)];
    let (text, conflicts) = all_merged(&chain).expect("one device");
    assert!(text.contains("name: \"a\"") && text.contains("aliases: [\"b\", \"c\"]"), "{text}");
    assert_eq!(conflicts.len(), 2);
    let [a, b, c] = chain;
    for order in [[&a, &c, &b], [&b, &a, &c], [&c, &a, &b], [&c, &b, &a]] {
        assert_eq!(all_merged(&order.map(Document::clone)).expect("one device").0, text);
    }
    // Nothing says that these two are of one device.
    let refused = all_merged(&[a, c]).expect_err("not linked");
    assert!(matches!(refused, (1, DeviceMismatch { property: "the device name", .. })));
}

#[test]
fn memory_that_grows_by_small_steps_is_not_the_same_device() {
    let steps = [named("a", &[], 1500, 1), named("a", &[], 1600, 2), named("a", &[], 1410, 3)];
    let refused = all_merged(&steps).expect_err("too far apart");
    let (document, DeviceMismatch { profile, device, .. }) = refused;
    assert_eq!((document, &*profile, &*device), (1, "1410", "1600"));
}

fn many() -> impl Strategy<Value = Vec<Document>> {
    let name = || prop::sample::select(vec!["a", "b", "c", "d", "e"]);
    let aliases = prop::collection::vec(name(), 0..3);
    // Mostly the same memory, now and then near it.
    let memory = prop::sample::select(vec![1600_u64, 1600, 1600, 1550, 1510, 1490]);
    let document = (name(), aliases, memory, 1..4_u8)
        .prop_map(|(name, aliases, memory, date)| named(name, &aliases, memory, date));
    prop::collection::vec(document, 1..6)
}

proptest! {
    #[test]
    fn any_permutation_merges_to_the_same_bytes_or_is_rejected(
        (documents, permuted) in many().prop_flat_map(|documents| {
            (Just(documents.clone()), Just(documents).prop_shuffle())
        })
    ) {
        prop_assert_eq!(all_merged(&documents).ok(), all_merged(&permuted).ok());
    }

    #[test]
    fn merging_one_by_one_gives_the_same_as_merging_together(documents in many()) {
        let (first, others) = documents.split_first().expect("one at least");
        let mut one_by_one = first.clone();
        if others.iter().all(|other| one_by_one.merge(other).is_ok())
            && let Ok((text, _)) = all_merged(&documents)
        {
            prop_assert_eq!(one_by_one.to_string(), text);
        }
    }
}
