//! Files that were not written by this crate, or not only.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::*;
use super::{document, entry};

/// A file of three entries, and where the middle one lies.
fn three() -> (String, std::ops::Range<usize>) {
    let text = document([entry("a", 7, 5), entry("b", 7, 5), entry("c", 7, 5)]).to_ron();
    let begin = text.find("(kernel: \"b\"").expect("the second");
    let end = text.find("(kernel: \"c\"").expect("the third");
    (text, begin..end)
}

/// The file with `from` in its second entry replaced.
fn with(from: &str, to: &str) -> String {
    let (text, middle) = three();
    let entry = &text[middle.clone()];
    assert!(entry.contains(from), "{from}");
    format!("{}{}{}", &text[..middle.start], entry.replacen(from, to, 1), &text[middle.end..])
}

/// Replaces `from` in the second entry: the others stay, and this is the fault.
fn fault_of(from: &str, to: &str) -> Fault {
    let parsed = Document::parse(&with(from, to)).expect("the others are kept");
    let kernels: Vec<_> = parsed.document.entries().iter().map(|one| &*one.key.kernel).collect();
    assert_eq!(kernels, ["a", "c"], "{:?}", parsed.faults);
    assert_eq!(parsed.faults.len(), 1, "{:?}", parsed.faults);
    parsed.faults[0].clone()
}

#[test]
fn a_bad_entry_is_told_by_line_and_column_and_costs_no_other() {
    // The header has six lines, the first entry four.
    let fault = fault_of("launches: 1", "launches: -1");
    assert_eq!(fault.line, 12, "{fault}");
    let line = with("launches: 1", "launches: -1");
    let line = line.lines().nth(11).expect("line 12");
    let place = line.find("-1").expect("the number");
    assert!(fault.column.abs_diff(place + 1) <= 2, "{fault}, {place}");
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn wrong_types_and_values_are_faults() {
    for (from, to) in [
        ("launches: 1", "launches: NaN"),
        ("launches: 1", "launches: inf"),
        ("launches: 1", "launches: 1.5"),
        ("launches: 1", "launches: \"1\""),
        ("launches: 1", "launches: 18446744073709551616"),
        ("launches: 1", "launches: 340282366920938463463374607431768211456"),
        ("launches: 1", "launches: 1, surprise: 2"),
        ("launches: 1", "launches: 1, launches: 1"),
        ("launches: 1,", ""),
        ("max_items: 7", "max_items: 0"),
        ("chunked(max_items: 7)", "chunked"),
        ("chunked(max_items: 7)", "faster"),
        ("policy: (l2: cold, submission: eager)", "policy: (l2: lukewarm, submission: eager)"),
        ("stopped: noise", "stopped: nois"),
        ("median_ns: 100", "median_ns: 100, mean_ns: 3"),
        ("(\"rows\", 7)", "(\"rows\", 7, 7)"),
        ("(\"rows\", 7)", "rows"),
    ] {
        let fault = fault_of(from, to);
        assert!((10..=14).contains(&fault.line), "{to}: {fault}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn sizes_and_names_out_of_bounds_are_faults_at_the_entry() {
    let many = |count| {
        let sizes: Vec<_> = (0..count).map(|name| format!("(\"{name}\", 5)")).collect();
        format!("shape: [{}]", sizes.join(", "))
    };
    let shape = "shape: [(\"rows\", 7), (\"columns\", 5)]";
    let name = "kernel: \"b\"";
    for (from, to, message) in [
        (shape, &*many(17), "shape has 17 values, at most 16 are taken: leave some out"),
        (shape, "shape: []", "shape has no sizes: name at least one"),
        (
            shape,
            "shape: [(\"rows\", 0), (\"columns\", 5)]",
            "size \"rows\" is 0: the first size counts the items, which begin at 1",
        ),
        (shape, "shape: [(\"rows\", 1), (\"rows\", 1)]", "shape names \"rows\" twice: remove one"),
        (name, "kernel: \"\"", "kernel is empty: name it"),
        (
            name,
            &*format!("kernel: {:?}", "k".repeat(65)),
            "kernel has 65 bytes, at most 64 are taken: shorten it",
        ),
        (
            "\"2026-11-20T12:00:00Z\"",
            &*format!("{:?}", "9".repeat(1000)),
            "date has 1000 bytes, at most 64 are taken: shorten it",
        ),
    ] {
        assert_eq!(fault_of(from, to).to_string(), format!("11:9: {message}"));
    }
}

#[test]
fn of_two_entries_about_the_same_the_first_stays() {
    let text = with("kernel: \"b\"", "kernel: \"a\"").replacen("launches: 1", "launches: 5", 1);
    let parsed = Document::parse(&text).expect("the others are kept");
    assert_eq!(parsed.document.entries().len(), 2);
    assert_eq!(parsed.document.entries()[0].launches, 5);
    let fault = "11:9: an entry of this kernel and shape stands before it: remove one";
    assert_eq!(parsed.faults[0].to_string(), fault);
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn a_broken_bracket_string_or_comment_costs_its_entry_alone() {
    for (from, to) in [
        ("[(\"rows\", 7)", "[(\"rows\", 7"),
        ("[(\"rows\", 7)", "[(\"rows\", 7))"),
        ("[(\"rows\", 7)", "[(\"rows\", 7)]"),
        ("kernel: \"b\"", "kernel: \"b"),
        ("kernel: \"b\"", "kernel: r#\"b\""),
        ("kernel: \"b\"", "kernel: 'b"),
        ("kernel: \"b\"", "/* kernel: \"b\""),
        ("kernel: \"b\"", "kernel: \"b\" /"),
        ("kernel: \"b\"", "kernel: \"b\\"),
        ("kernel: \"b\"", "kernel: \"b\"}"),
    ] {
        let fault = fault_of(from, to);
        assert!((10..=15).contains(&fault.line), "{to}: {fault}");
    }
}

#[test]
fn faults_are_told_in_the_file_s_order_also_where_an_entry_runs_into_the_next() {
    let (text, middle) = three();
    let broken = "br\"\n (kernel: \"b\", source: \"\", dtypes:)(1: 1),\n launches: -1,\n";
    let text = format!("{}{broken}{}", &text[..middle.start], &text[middle.end..]);
    let parsed = Document::parse(&text).expect("a header");
    assert!(parsed.faults.len() > 1, "{:?}", parsed.faults);
    assert!(parsed.faults.is_sorted_by_key(|fault| (fault.line, fault.column)));
    assert_eq!(parsed.document.entries(), [entry("a", 7, 5), entry("c", 7, 5)]);
}

#[test]
fn a_file_that_was_cut_keeps_its_whole_entries() {
    let (text, middle) = three();
    let parsed = Document::parse(&text[..middle.start + 40]).expect("a header");
    assert_eq!(parsed.document.entries().len(), 1);
    assert_eq!(parsed.faults.len(), 1);
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn deep_nesting_is_refused_before_any_parser_recurses() {
    let deep = "(".repeat(100_000);
    let fault = fault_of("launches: 1", &format!("launches: {deep}"));
    assert!(fault.message.contains("nested deeper than 16"), "{fault}");
    let closed = format!("launches: {}{}", "[".repeat(17), "]".repeat(17));
    assert!(fault_of("launches: 1", &closed).message.contains("nested deeper than 16"));
    for header in [format!("(schema: 1, device: {deep}"), deep.clone(), "[".repeat(100_000)] {
        let error = Document::parse(&header).expect_err("no header");
        assert!(matches!(error, ProfileError::Header(_)), "{error}");
    }
    let comments = format!("(schema: 1, {} entries: [", "/*".repeat(100_000));
    let error = Document::parse(&comments).expect_err("no header");
    assert!(error.to_string().contains("the comment is"), "{error}");
}

#[test]
fn a_schema_to_come_is_refused_whatever_else_there_is() {
    let error = Document::parse("(schema: 2, nothing: {like} today").expect_err("newer");
    assert_eq!(error, ProfileError::Schema { found: 2 });
    let error = Document::parse("(schema: 0, entries: [])").expect_err("never was");
    assert_eq!(error, ProfileError::Schema { found: 0 });
}

#[test]
fn a_broken_header_refuses_the_file_with_its_place() {
    let (text, _) = three();
    for (from, to, place) in [
        ("(\n", "", (1, 5)),
        ("schema: 1", "schema: one", (2, 16)),
        ("    schema: 1,\n", "", (2, 11)),
        ("multiprocessors: 1", "multiprocessors: -1", (3, 0)),
        ("    environment", "    surroundings", (5, 0)),
        ("entries: [", "entries: (", (6, 14)),
        ("entries: [", "entry: [", (0, 0)),
    ] {
        let text = text.replacen(from, to, 1);
        let error = Document::parse(&text).expect_err(to);
        let ProfileError::Header(fault) = &error else { panic!("{error}") };
        let (line, column) = place;
        assert!(line == 0 || fault.line == line, "{to}: {fault}");
        assert!(column == 0 || fault.column == column, "{to}: {fault}");
    }
    for text in ["", " ", "()", "\u{feff}", "\0\0\0", "// only a comment", "(schema: 1)"] {
        let error = Document::parse(text).expect_err(text);
        assert!(matches!(error, ProfileError::Header(_)), "{text:?}: {error}");
    }
    let long = text.replace("generic CUDA device", &"x".repeat(300));
    assert!(matches!(Document::parse(&long), Err(ProfileError::Header(_))));
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn too_many_entries_and_too_many_bytes_are_refused() {
    let (text, _) = three();
    let (header, _) = text.split_once("entries: [").expect("a list");
    let many = format!("{header}entries: [{}])", "(),".repeat(MAX_ENTRIES + 1));
    assert_eq!(Document::parse(&many), Err(ProfileError::TooManyEntries));
    let large = " ".repeat(usize::try_from(MAX_FILE_BYTES).expect("64 bits") + 1);
    let error = Document::parse(&large).expect_err("too large");
    assert_eq!(error, ProfileError::TooLarge { bytes: MAX_FILE_BYTES + 1 });
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn entries_without_an_end_are_given_up_in_good_time() {
    let (text, _) = three();
    let (header, _) = text.split_once("entries: [").expect("a list");
    let begun = Instant::now();
    for broken in ["(kernel: \"", "(kernel: [(", "(kernel: /* ", "(kernel: r#\"", "(kernel: '"] {
        let lines = format!("{header}entries: [\n{}", format!("{broken}\n").repeat(100_000));
        // Some find an end in the next line's beginning, the others are given up.
        match Document::parse(&lines) {
            Ok(parsed) => assert_eq!(parsed.document.entries(), []),
            Err(error) => assert!(matches!(error, ProfileError::Structure(_)), "{error}"),
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = Document::parse(&text);
        let _ = Document::parse(&format!("(schema: 1, entries: [{text}"));
    }

    #[test]
    fn a_bitten_entry_costs_no_other(
        at in any::<prop::sample::Index>(),
        bite in 0..40_usize,
        new in "[ -~\\n]{0,6}",
    ) {
        let (text, middle) = three();
        // The line break and the blanks before the next entry are what it is found by.
        let entry = text[middle.clone()].trim_end();
        let at = at.index(entry.len());
        let end = (at + bite).min(entry.len());
        let bitten = format!("{}{new}{}", &entry[..at], &entry[end..]);
        let rest = &text[middle.start + entry.len()..];
        let text = format!("{}{bitten}{rest}", &text[..middle.start]);
        let parsed = Document::parse(&text).expect("the header is whole");
        for kernel in ["a", "c"] {
            let kept = parsed.document.entries().contains(&super::entry(kernel, 7, 5));
            prop_assert!(kept, "{} is lost: {}\n{:?}", kernel, bitten, parsed.faults);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn a_bitten_file_is_read_or_refused(
        at in any::<prop::sample::Index>(),
        bite in 0..400_usize,
        new in "\\PC{0,6}",
    ) {
        let (text, _) = three();
        let at = at.index(text.len());
        let end = (at + bite).min(text.len());
        if let Ok(parsed) = Document::parse(&format!("{}{new}{}", &text[..at], &text[end..])) {
            let text = parsed.document.to_ron();
            prop_assert_eq!(Document::parse(&text).expect("its own").document, parsed.document);
        }
    }
}

/// Brackets, quotes and commas, put in or taken out anywhere: what chance seldom draws.
#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn no_single_bracket_quote_or_comma_costs_another_entry() {
    let (text, middle) = three();
    let entry = text[middle.clone()].trim_end();
    let rest = &text[middle.start + entry.len()..];
    for at in 0..entry.len() {
        for (bite, new) in
            ["", "(", ")", "[", "]", "\"", ",", "/*"].map(|new| [(0, new), (1, new)]).concat()
        {
            let end = (at + bite).min(entry.len());
            let bitten = format!("{}{new}{}", &entry[..at], &entry[end..]);
            let text = format!("{}{bitten}{rest}", &text[..middle.start]);
            let parsed = Document::parse(&text).expect("the header is whole");
            for kernel in ["a", "c"] {
                let kept = parsed.document.entries().contains(&super::entry(kernel, 7, 5));
                assert!(kept, "{kernel} is lost: {bitten}\n{:?}", parsed.faults);
            }
        }
    }
}
