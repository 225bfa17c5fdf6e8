//! Documents are parsed as they were written.

use proptest::prelude::*;

use super::super::*;
use super::generate::documents;
use super::{device, document, entry, environment};

proptest! {
    #[test]
    fn every_document_is_parsed_as_it_was_written(document in documents()) {
        let text = document.to_string();
        let parsed = Document::parse(&text).expect("its own text");
        prop_assert_eq!(&parsed.faults, &[]);
        prop_assert_eq!(&parsed.document, &document);
        prop_assert_eq!(parsed.document.to_string(), text);
    }

    #[test]
    fn row_by_row_a_document_is_parsed_as_whole(document in documents()) {
        // The second entry of the same key and shape is a fault, for which positions are needed.
        let text = document.to_string();
        let Some(begin) = text.find("        (kernel:") else { return Ok(()) };
        let end = text.rfind("    ],").expect("the end of the list");
        let twice = format!("{}{}{}", &text[..end], &text[begin..end], &text[end..]);
        let parsed = Document::parse(&twice).expect("its own text");
        prop_assert_eq!(parsed.faults.len(), document.entries().len());
        prop_assert_eq!(&parsed.document, &document);
    }
}

#[test]
fn a_confirmed_entry_is_one_short_row() {
    let of = |rows| {
        let Entry { key, shape, found, .. } = entry("copy", rows, 1);
        Entry::confirmed(key, shape, found.date)
    };
    let both = document([of(7), entry("copy", 9, 1), of(8)]);
    let text = both.to_string();
    let row = "\n         shape: [(\"rows\", 7), (\"columns\", 1)], confirmed: \"2026-11-20T12:00:00Z\"),\n";
    assert!(text.contains(row), "{text}");
    let parsed = Document::parse(&text).expect("its own text");
    assert_eq!((parsed.faults.len(), &parsed.document), (0, &both));
    assert!(both.entries()[0].is_confirmed() && !both.entries()[2].is_confirmed());
    // A row is one or the other.
    for (from, to) in [
        ("confirmed: ", "choice: whole, confirmed: "),
        ("confirmed: ", "parameters: [(\"warps\", 1)], confirmed: "),
        ("confirmed: \"2026-11-20T12:00:00Z\"", "launches: 1"),
        ("launches: 1", "confirmed: \"\""),
        (", launches: 1", ""),
    ] {
        let broken = text.replacen(from, to, 1);
        let parsed = Document::parse(&broken).expect("a file");
        assert_eq!(parsed.document.entries().len(), 2, "{broken}");
        assert!(parsed.faults[0].message.contains("nor only confirmed"), "{:?}", parsed.faults);
    }
    let late = text.replacen("confirmed: \"2026", "confirmed: \"9026", 1);
    assert_eq!(Document::parse(&late).expect("a file").document.entries().len(), 2);
}

#[test]
fn a_throughput_entry_gains_nothing_below_two_percent() {
    let with = |chosen, default, objective| {
        let mut one = entry("copy", 7, 1);
        (one.chosen.median_ns, one.default.median_ns) = (chosen, default);
        one.key.objective = objective;
        one.gains_nothing()
    };
    for (chosen, default, expected) in [
        (100, 100, true),
        (1000, 1019, true),
        (1000, 1020, false),
        (100, 90, true),
        (0, 0, false),
        (u64::MAX, u64::MAX, true),
    ] {
        assert_eq!(with(chosen, default, Objective::Throughput), expected, "{chosen} {default}");
        assert!(!with(chosen, default, Objective::Latency { max_launch_us: 1 }));
    }
}

#[test]
fn entries_are_written_in_order_of_key_and_shape() {
    let sorted = document([entry("b", 1, 1), entry("a", 9, 1), entry("a", 10, 1)]);
    let rows: Vec<_> =
        sorted.entries().iter().map(|one| (&*one.key.kernel, one.shape[0].1)).collect();
    assert_eq!(rows, [("a", 9), ("a", 10), ("b", 1)]);
}

#[test]
fn an_entry_written_by_hand_may_omit_defaults_and_order_its_fields_freely() {
    let text = document([]).to_string().replace(
        "entries: [\n",
        "entries: [ // by hand\n (kernel: r#\"copy\"#, dtypes: \"f\\u{31}6\", source: \"\", launches: 0x2, \
         choice: whole, shape: [(\"rows\", 1_000)], default: (median_ns: 1, low_ns: 1, high_ns: 1, \
         samples: 1), chosen: (median_ns: 1, low_ns: 1, high_ns: 1, samples: 1), found: (date: \"\", \
         driver: \"\", compiler: \"\", tuner: \"\", candidates: 0, failed: 0, samples: 0, \
         stopped: precise)) /* ) /* nested */ */ \n",
    );
    let parsed = Document::parse(&text).expect("a file");
    assert_eq!(parsed.faults, []);
    let read = &parsed.document.entries()[0];
    assert_eq!((&*read.key.kernel, &*read.key.dtypes, read.launches), ("copy", "f16", 2));
    assert_eq!(read.shape, [("rows".to_owned(), 1000)]);
    assert_eq!(read.key.policy, Policy::default());
}

#[test]
fn the_entries_may_come_before_the_device_also_with_an_invalid_one() {
    let text = document([entry("a", 7, 5), entry("b", 7, 5)]).to_string();
    let list = &text[text.find("    entries: [").expect("a list")..];
    let list = list.strip_suffix(")\n").expect("the end of the file");
    let header = text.strip_prefix("(\n    schema: 1,\n").expect("a schema").replace(list, "");
    let text = format!("(\n    schema: 1,\n{list}{header}");
    let parsed = Document::parse(&text).expect("a file");
    assert_eq!((parsed.faults.len(), parsed.document.entries().len()), (0, 2));
    let text = text.replacen("launches: 1", "launches: -1", 1);
    let parsed = Document::parse(&text).expect("a file");
    assert_eq!((parsed.faults.len(), parsed.document.entries().len()), (1, 1));
}

#[test]
fn a_header_without_backend_or_aliases_is_for_a_cuda_device() {
    let text = document([entry("copy", 7, 5)]).to_string();
    let text = text.replace("backend: cuda, ", "").replace("    aliases: [],\n", "");
    let parsed = Document::parse(&text).expect("a file");
    assert_eq!(parsed.document, document([entry("copy", 7, 5)]));
}

#[test]
fn an_insert_replaces_and_returns_the_old_entry() {
    let mut document = Document::new(device(), environment());
    let old = entry("copy", 7, 5);
    let new = Entry { choice: StoredChoice::Whole, ..old.clone() };
    assert_eq!(document.insert(old.clone()), Ok(None));
    assert_eq!(document.insert(new.clone()), Ok(Some(old)));
    assert_eq!(document.entries(), std::slice::from_ref(&new));
    assert_eq!(document.get(&new.key, &new.shape), Some(&new));
    document.retain(|_| false);
    assert_eq!(document.entries(), []);
}
