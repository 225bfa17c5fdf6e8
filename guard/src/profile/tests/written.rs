//! What is written is read again, by both readers.

use proptest::prelude::*;

use super::super::row::EntryRow;
use super::super::*;
use super::generate::{documents, entries};
use super::{device, document, entry, environment};

proptest! {
    #[test]
    fn every_document_is_read_as_it_was_written(document in documents()) {
        let text = document.to_ron();
        let parsed = Document::parse(&text).expect("its own text");
        prop_assert_eq!(&parsed.faults, &[]);
        prop_assert_eq!(&parsed.document, &document);
        prop_assert_eq!(parsed.document.to_ron(), text);
    }

    #[test]
    fn the_quick_reader_agrees_with_ron(entry in entries()) {
        let text = element(&entry);
        let slow: Entry = ron::from_str::<EntryRow>(&text).expect("RON").into();
        prop_assert_eq!(&slow, &entry);
        if let Some((quick, bytes)) = reader::entry(&text) {
            prop_assert_eq!(quick, entry);
            prop_assert_eq!(bytes, text.len());
        }
    }

    #[test]
    fn what_the_quick_reader_takes_ron_takes_too(
        at in any::<prop::sample::Index>(),
        byte in "[ -~\\n]",
        remove in 0..3_usize,
    ) {
        let text = element(&entry("copy", 7, 4096));
        let at = at.index(text.len());
        let end = (at + remove).min(text.len());
        let mutated = format!("{}{byte}{}", &text[..at], &text[end..]);
        if let Some((quick, bytes)) = reader::entry(&mutated) {
            let taken = &mutated[..bytes];
            let slow = ron::from_str::<EntryRow>(taken).map(Entry::from);
            prop_assert_eq!(slow.ok(), Some(quick), "{}", taken);
        }
    }
}

/// The text of an entry alone.
fn element(entry: &Entry) -> String {
    let text = document([entry.clone()]).to_ron();
    let begin = text.find("(kernel:").expect("an entry");
    let end = text.rfind(",\n    ],").expect("its end");
    text[begin..end].to_owned()
}

#[test]
fn the_quick_reader_takes_what_is_written_for_plain_names() {
    let text = element(&entry("copy", 7, 4096));
    assert_eq!(reader::entry(&text), Some((entry("copy", 7, 4096), text.len())));
}

#[test]
fn entries_are_written_in_order_of_key_and_shape() {
    let sorted = document([entry("b", 1, 1), entry("a", 9, 1), entry("a", 10, 1)]);
    let rows: Vec<_> =
        sorted.entries().iter().map(|one| (&*one.key.kernel, one.shape[0].1)).collect();
    assert_eq!(rows, [("a", 9), ("a", 10), ("b", 1)]);
}

#[test]
fn an_entry_by_hand_may_leave_out_what_has_a_default_and_be_in_any_order() {
    let text = document([]).to_ron().replace(
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
fn a_header_without_backend_or_aliases_is_of_a_cuda_device() {
    let text = document([entry("copy", 7, 5)]).to_ron();
    let text = text.replace("backend: cuda, ", "").replace("    aliases: [],\n", "");
    let parsed = Document::parse(&text).expect("a file");
    assert_eq!(parsed.document, document([entry("copy", 7, 5)]));
}

#[test]
fn an_insert_replaces_and_answers_the_old_entry() {
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
