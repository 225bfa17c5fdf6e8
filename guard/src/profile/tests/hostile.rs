//! Files written by hand, damaged or hostile.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::super::rows::work;
use super::super::*;
use super::{document, entry};

/// A file of three entries, and the bytes of the second.
fn three() -> (String, std::ops::Range<usize>) {
    let text = document([entry("a", 7, 5), entry("b", 7, 5), entry("c", 7, 5)]).to_string();
    let begin = text.find("(kernel: \"b\"").expect("the second");
    let end = text.find("(kernel: \"c\"").expect("the third");
    (text, begin..end)
}

/// Replaces `bite` bytes of the second entry at `at`, and returns the first entry that this costs.
fn lost_by(at: usize, bite: usize, new: &str) -> Option<String> {
    let (text, middle) = three();
    // Entries are recognized by the line break and blanks before them.
    let entry = text[middle.clone()].trim_end();
    let end = (at + bite).min(entry.len());
    let damaged = format!("{}{new}{}", &entry[..at], &entry[end..]);
    let rest = &text[middle.start + entry.len()..];
    let text = format!("{}{damaged}{rest}", &text[..middle.start]);
    let Document { entries, .. } = Document::parse(&text).expect("the header is whole").document;
    let lost = ["a", "c"].into_iter().find(|kernel| !entries.contains(&super::entry(kernel, 7, 5)));
    lost.map(|kernel| format!("{kernel} is lost: {damaged}"))
}

/// The file with `from` replaced in its second entry.
fn with(from: &str, to: &str) -> String {
    let (text, middle) = three();
    let entry = &text[middle.clone()];
    assert!(entry.contains(from), "{from}");
    format!("{}{}{}", &text[..middle.start], entry.replacen(from, to, 1), &text[middle.end..])
}

/// Replaces `from` in the second entry, checks that the others are kept, and returns the fault.
fn fault_of(from: &str, to: &str) -> FileFault {
    let parsed = Document::parse(&with(from, to)).expect("the others are kept");
    let kernels: Vec<_> = parsed.document.entries().iter().map(|one| &*one.key.kernel).collect();
    assert_eq!(kernels, ["a", "c"], "{:?}", parsed.faults);
    assert_eq!(parsed.faults.len(), 1, "{:?}", parsed.faults);
    parsed.faults[0].clone()
}

#[test]
fn a_bad_entry_is_reported_by_line_and_column_and_costs_no_other() {
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
fn sizes_and_names_beyond_the_limits_are_faults_at_the_entry() {
    let many = |count| {
        let sizes: Vec<_> = (0..count).map(|name| format!("(\"{name}\", 5)")).collect();
        format!("shape: [{}]", sizes.join(", "))
    };
    let shape = "shape: [(\"rows\", 7), (\"columns\", 5)]";
    let (name, date) = ("kernel: \"b\"", "\"2026-11-20T12:00:00Z\"");
    let long = |name: &str, bytes| format!("{name}{:?}", "9".repeat(bytes));
    let zero = "shape: [(\"rows\", 0), (\"columns\", 5)]".to_owned();
    let twice = "shape: [(\"rows\", 1), (\"rows\", 1)]".to_owned();
    let zero_size = r#"size "rows" is 0: the first size counts the items and must be at least 1"#;
    for (from, to, error) in [
        (shape, many(17), "shape has 17 values, the limit is 16: remove some"),
        (shape, many(0), "shape has no sizes: give at least one"),
        (shape, zero, zero_size),
        (shape, twice, r#"shape has "rows" twice: remove one"#),
        (name, "kernel: \"\"".to_owned(), "kernel is empty: give the kernel's name"),
        (name, long("kernel: ", 65), "kernel has 65 bytes, the limit is 64: shorten it"),
        (date, long("", 1000), "date has 1000 bytes, the limit is 64: shorten it"),
    ] {
        assert_eq!(fault_of(from, &to).to_string(), format!("11:9: {error}"));
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn a_date_that_does_not_exist_or_is_in_the_future_is_a_fault_at_the_entry() {
    for date in [
        "zzz",
        "2026-11-20",
        "2026-11-20 12:00:00Z",
        "2026-11-20T12:00:00",
        "2026-11-20T12:00:00.5Z",
        "2026-11-20T12:00:00+00:00",
        "2026-11-20T12:+00:00",
        "2026-02-29T12:00:00Z",
        "2026-13-20T12:00:00Z",
        "1969-12-31T23:59:59Z",
        "99999-01-01T00:00:00Z",
    ] {
        let fault = fault_of("\"2026-11-20T12:00:00Z\"", &format!("{date:?}"));
        let invalid = format!(
            "11:9: date {date:?} is not a valid date of the form 2026-11-20T12:00:00Z: correct it, \
             or leave it empty"
        );
        assert_eq!(fault.to_string(), invalid);
    }
    let ahead = |hours: u64| {
        let then = SystemTime::now() + Duration::from_secs(hours * 3600);
        humantime::format_rfc3339_seconds(then).to_string()
    };
    for date in [ahead(25), ahead(1 << 20), "9999-12-31T23:59:59Z".to_owned()] {
        let fault = fault_of("2026-11-20T12:00:00Z", &date);
        let future = format!(
            "11:9: date {date} is more than a day in the future: check the clock, and correct the \
             date or leave it empty"
        );
        assert_eq!(fault.to_string(), future);
    }
    for date in [String::new(), ahead(23), "1970-01-01T00:00:00Z".to_owned()] {
        let text = with("2026-11-20T12:00:00Z", &date);
        assert_eq!(Document::parse(&text).expect("parses").faults, [], "{date}");
    }
}

#[test]
fn of_two_entries_with_the_same_key_and_shape_the_first_is_kept() {
    let text = with("kernel: \"b\"", "kernel: \"a\"").replacen("launches: 1", "launches: 5", 1);
    let parsed = Document::parse(&text).expect("the others are kept");
    assert_eq!(parsed.document.entries().len(), 2);
    assert_eq!(parsed.document.entries()[0].launches, 5);
    let twice = "11:9: an earlier entry has the same kernel and shape: remove one";
    assert_eq!(parsed.faults[0].to_string(), twice);
}

#[test]
fn faults_are_in_the_order_of_the_file_even_if_an_entry_runs_into_the_next() {
    let (text, middle) = three();
    let broken = "br\"\n (kernel: \"b\", source: \"\", dtypes:)(1: 1),\n launches: -1,\n";
    let text = format!("{}{broken}{}", &text[..middle.start], &text[middle.end..]);
    let parsed = Document::parse(&text).expect("a header");
    assert!(parsed.faults.len() > 1, "{:?}", parsed.faults);
    assert!(parsed.faults.is_sorted_by_key(|fault| (fault.line, fault.column)));
    assert_eq!(parsed.document.entries(), [entry("a", 7, 5), entry("c", 7, 5)]);
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn deep_nesting_is_rejected_without_a_stack_overflow() {
    let deep = "(".repeat(100_000);
    let fault = fault_of("launches: 1", &format!("launches: {deep}"));
    assert!(fault.message.contains("nested deeper than 16"), "{fault}");
    let closed = format!("launches: {}{}", "[".repeat(17), "]".repeat(17));
    assert!(fault_of("launches: 1", &closed).message.contains("nested deeper than 16"));
    for header in [format!("(schema: 1, device: {deep}"), deep.clone(), "[".repeat(100_000)] {
        let error = Document::parse(&header).expect_err("no header");
        assert!(matches!(error.kind(), ProfileErrorKind::Header(_)), "{error}");
    }
    let comments = format!("(schema: 1, {} entries: [", "/*".repeat(100_000));
    let error = Document::parse(&comments).expect_err("no header");
    assert!(error.to_string().contains("Unclosed block comment"), "{error}");
}

#[test]
fn another_schema_is_rejected_whatever_follows() {
    let error = Document::parse("(schema: 3, nothing: {like} today").expect_err("newer");
    assert_eq!(error, ProfileError::schema(3));
    let error = Document::parse("(schema: 0, entries: [])").expect_err("never was");
    assert_eq!(error, ProfileError::schema(0));
}

#[test]
fn a_broken_header_rejects_the_file_with_a_position() {
    let (text, _) = three();
    for (from, to, line) in [
        ("(\n", "", 1),
        ("schema: 1", "schema: one", 2),
        // Where the rows begin.
        ("    schema: 1,\n", "", 6),
        ("multiprocessors: 1", "multiprocessors: -1", 3),
        ("    environment", "    surroundings", 5),
        ("entries: [", "entries: (", 6),
        ("entries: [", "entry: [", 6),
    ] {
        let text = text.replacen(from, to, 1);
        let error = Document::parse(&text).expect_err(to);
        let ProfileErrorKind::Header(fault) = error.kind() else { panic!("{error}") };
        assert_eq!(fault.line, line, "{to}: {fault}");
    }
    for text in ["", " ", "()", "\u{feff}", "\0\0\0", "// only a comment", "(schema: 1)"] {
        let error = Document::parse(text).expect_err(text);
        assert!(matches!(error.kind(), ProfileErrorKind::Header(_)), "{text:?}: {error}");
    }
    let long = text.replace("generic CUDA device", &"x".repeat(300));
    let error = Document::parse(&long).expect_err("a long name");
    assert!(matches!(error.kind(), ProfileErrorKind::Header(_)), "{error}");
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn a_full_profile_takes_no_other_entry() {
    let mut full = document([entry("copy", 7, 5)]);
    full.entries = vec![entry("copy", 7, 5); MAX_ENTRIES];
    assert_eq!(
        full.insert(entry("sum", 7, 5)).expect_err("full").to_string(),
        "the profile has 200000 entries, the limit of a profile: split it by kernel"
    );
}

#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn too_many_entries_and_too_many_bytes_are_rejected() {
    let (text, _) = three();
    let (header, _) = text.split_once("entries: [").expect("a list");
    let many = format!("{header}entries: [{}])", "(),".repeat(MAX_ENTRIES + 1));
    assert_eq!(Document::parse(&many), Err(ProfileError::too_many_entries()));
    let large = " ".repeat(usize::try_from(MAX_FILE_BYTES).expect("64 bits") + 1);
    let error = Document::parse(&large).expect_err("too large");
    assert_eq!(error, ProfileError::too_many_bytes(MAX_FILE_BYTES + 1));
}

/// Bytes are counted, not seconds.
#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn many_bad_entries_are_read_in_linear_time() {
    let (text, _) = three();
    let (header, _) = text.split_once("entries: [").expect("a list");
    for broken in [
        "(kernel: \"\n",
        "(kernel: [(\n",
        "(kernel: /* \n",
        "(kernel: r#\"\n",
        "(kernel: '\n",
        "(kernel: 1),\n",
        "(kernel: \"\", // #\n),\n",
        "],\n(kernel:",
        "(), ",
        "1,",
        "((((((((((((",
        "(\"\"",
        "(r#\"",
        "/*",
    ] {
        let text = format!("{header}entries: [\n{}", broken.repeat(16_000));
        work::take();
        match Document::parse(&text) {
            Ok(parsed) => {
                assert_eq!(parsed.document.entries(), []);
                assert!(!parsed.faults.is_empty());
            }
            Err(error) => assert!(matches!(error.kind(), ProfileErrorKind::Header(_)), "{error}"),
        }
        // At most three attempts at a row, before and after a broken one.
        let (parsed, bytes) = (work::take(), text.len());
        assert!(parsed <= 6 * bytes, "{broken:?}: {parsed} bytes were parsed of {bytes}");
    }
}

#[test]
fn a_valid_file_is_parsed_once() {
    let (text, _) = three();
    work::take();
    assert_eq!(Document::parse(&text).expect("valid").faults, []);
    assert!(work::take() < text.len());
}

#[test]
fn rows_after_a_bad_one_on_the_same_line_are_kept() {
    let text = document([entry("a", 7, 5), entry("b", 7, 5), entry("c", 7, 5)]).to_string();
    let one_line = text.replace('\n', " ").replacen("launches: 1", "launches: -1", 1);
    let parsed = Document::parse(&one_line).expect("a header");
    assert_eq!(parsed.document.entries(), [entry("b", 7, 5), entry("c", 7, 5)]);
    assert_eq!((parsed.faults.len(), parsed.faults[0].line), (1, 1));
}

#[test]
fn what_ron_alone_rejects_is_never_silent() {
    let (text, _) = three();
    let attribute = text.replacen("(kernel", "#![enable(implicit_some)] (kernel", 1);
    let trailing = format!("{text}junk");
    let unclosed = text.replacen("    ],\n)", "", 1);
    for text in [attribute, trailing, unclosed] {
        let parsed = Document::parse(&text).expect("a header");
        assert!(!parsed.faults.is_empty(), "{text}");
        assert_eq!(parsed.document.entries().len(), 3, "{:?}", parsed.faults);
    }
}

#[test]
fn an_entry_in_a_comment_is_not_read() {
    let (text, middle) = three();
    let (before, rest) = (&text[..middle.start], &text[middle.end..]);
    let entry = text[middle.clone()].trim_end();
    let commented = format!("{before}/*\n{entry}\n*/\n        {rest}");
    for text in [commented.clone(), commented.replacen("launches: 1", "launches: -1", 1)] {
        let parsed = Document::parse(&text).expect("a header");
        let kernels = parsed.document.entries().iter().map(|one| &*one.key.kernel);
        assert!(kernels.clone().all(|kernel| kernel != "b"), "{text}");
        assert_eq!(kernels.count() + parsed.faults.len(), 2, "{:?}", parsed.faults);
    }
}

proptest! {
    #[test]
    fn a_damaged_entry_costs_no_other(
        at in any::<prop::sample::Index>(),
        bite in 0..40_usize,
        new in "[ -~\\n]{0,6}",
    ) {
        let (text, middle) = three();
        let len = text[middle].trim_end().len();
        prop_assert_eq!(lost_by(at.index(len), bite, &new), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn a_damaged_file_is_parsed_or_rejected(
        at in any::<prop::sample::Index>(),
        bite in 0..400_usize,
        new in "\\PC{0,6}",
    ) {
        let (text, _) = three();
        let at = at.index(text.len());
        let end = (at + bite).min(text.len());
        if let Ok(parsed) = Document::parse(&format!("{}{new}{}", &text[..at], &text[end..])) {
            let text = parsed.document.to_string();
            prop_assert_eq!(Document::parse(&text).expect("its own").document, parsed.document);
        }
    }
}

/// Inserts and removes brackets, quotes and commas anywhere, which random edits rarely do.
#[test]
#[cfg_attr(miri, ignore = "minutes under Miri")]
fn no_single_bracket_quote_or_comma_costs_another_entry() {
    let (text, middle) = three();
    for at in 0..text[middle].trim_end().len() {
        assert_eq!(lost_by(at, 1, ""), None);
        for new in ["(", ")", "[", "]", "\"", ",", "/*"] {
            assert_eq!(lost_by(at, 0, new), None);
        }
    }
}
