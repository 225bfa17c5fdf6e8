//! Decision lists in documents, files and lookups.

use super::super::*;
use super::{device, document, entry, environment, key};

fn row(when: &[(&str, u64, u64)], source: Option<&Entry>) -> DecisionRow {
    let when = when.iter().map(|(name, low, high)| ((*name).to_owned(), (*low, *high))).collect();
    let (choice, parameters) =
        source.map(|entry| (entry.choice, entry.parameters.clone())).unwrap_or_default();
    DecisionRow { when, choice, parameters }
}

fn list(rows: Vec<DecisionRow>) -> DecisionList {
    let within = vec![("rows".to_owned(), (32, 8192)), ("columns".to_owned(), (0, 128))];
    DecisionList { key: key("copy"), within, rows }
}

/// Two measured shapes, one confirmed, and the list that agrees with all three.
fn decided() -> Document {
    let (narrow, wide) = (entry("copy", 64, 1), entry("copy", 4096, 64));
    let confirmed = Entry::confirmed(key("copy"), entry("copy", 1000, 16).shape, String::new());
    let mut document = document([narrow.clone(), wide.clone(), confirmed]);
    let rows = vec![
        row(&[("columns", 0, 7)], Some(&narrow)),
        row(&[("rows", 2049, 8192), ("columns", 32, 128)], Some(&wide)),
        row(&[], None),
    ];
    document.decide(list(rows)).expect("it agrees");
    document
}

#[test]
fn a_list_is_written_as_it_is_read_and_needs_its_schema() {
    let text = decided().to_string();
    let (begin, end) = (text.find("    decisions").expect("written"), text.find("    entries"));
    expect_test::expect![[r#"
        (
            decisions: [
                (kernel: "copy", source: "0f1e", variant: "", dtypes: "f16", policy: (l2: cold, submission: eager), objective: throughput,
                 within: [("rows", (32, 8192)), ("columns", (0, 128))], rows: [
                    (when: [("columns", (0, 7))], choice: chunked(max_items: 64), parameters: [("warps", 4)]),
                    (when: [("rows", (2049, 8192)), ("columns", (32, 128))], choice: chunked(max_items: 4096), parameters: [("warps", 4)]),
                    (when: [], choice: automatic, parameters: []),
                 ]),
            ],
    "#]]
    .assert_eq(&format!("(\n{}", &text[begin..end.expect("written")]));
    let parsed = Document::parse(&text).expect("its own text");
    assert_eq!((parsed.faults, &parsed.document), (vec![], &decided()));
    let error = Document::parse(&text.replace("schema: 2", "schema: 1")).expect_err("newer");
    assert!(error.to_string().contains("decision lists need schema 2"), "{error}");
}

#[test]
fn a_row_decides_where_no_entry_has_the_sizes_and_never_beyond_the_list() {
    let (profile, notices) = Profile::from_document(decided(), &device(), &environment());
    assert_eq!(notices, []);
    let confirmed = |kind| Match::Default(DefaultReason::Confirmed { kind });
    let outside = DefaultReason::OutOfRange { index: 0, size: 9000, bits: (7, 13) };
    for (sizes, matched, rows) in [
        ([64, 1], Match::Exact, Some(64)),
        ([65, 1], Match::Row { row: 0 }, Some(64)),
        ([8192, 7], Match::Row { row: 0 }, Some(64)),
        ([3000, 100], Match::Row { row: 1 }, Some(4096)),
        ([3000, 31], confirmed(MatchKind::Row), None),
        ([1000, 16], confirmed(MatchKind::Exact), None),
        ([9000, 16], Match::Default(outside), None),
    ] {
        let found = profile.lookup(&key("copy"), &sizes);
        let of_entry = found.entry.map(|entry| entry.shape[0].1);
        assert_eq!((found.matched, of_entry), (matched, rows), "{sizes:?}");
        let decision = profile.decision(&key("copy"), &sizes);
        assert_eq!(decision.is_some(), sizes[0] != 9000);
    }
    let other = vec![("rows".to_owned(), 64), ("heads".to_owned(), 1)];
    assert_eq!(decided().decisions()[0].row_of(&other), None, "sizes of other names");
    let misses = MissLog::new(8);
    misses.record(&key("copy"), &["rows"], &[65], Match::Row { row: 0 }.kind());
    assert!(misses.snapshot().is_empty(), "a row decides it");
}

#[test]
fn a_higher_layers_list_precedes_and_a_lower_ones_decides_the_rest() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, document: &Document| {
        let folder = folder.path().join(name);
        publish(&folder.join(document.device().file_name()), document).expect("written");
        folder
    };
    let mut high = document([entry("copy", 128, 2)]);
    let rows = vec![row(&[], Some(&high.entries()[0]))];
    let within = vec![("rows".to_owned(), (64, 256)), ("columns".to_owned(), (1, 4))];
    high.decide(DecisionList { within, ..list(rows) }).expect("it agrees");
    let layers = Layers::new().user_at(write("high", &high)).shipped(write("low", &decided()));
    let profile = layers.load(&device(), &environment()).profile;
    let found = |sizes| {
        let found = profile.lookup(&key("copy"), sizes);
        (found.layer.expect("decided"), found.choice())
    };
    assert_eq!(found(&[200, 3]).0, Layer::User);
    assert_eq!(found(&[300, 3]).0, Layer::Shipped);
}

#[test]
fn a_list_that_disagrees_with_the_entries_is_refused_and_left_out_of_a_file() {
    let base = decided();
    let [narrow, _, wide] = base.entries() else { panic!("three entries") };
    let mut foreign = wide.clone();
    foreign.parameters = vec![("warps".into(), 32)];
    let mut far = list(vec![row(&[], None)]);
    far.within[0].1.1 = (1 << 40) + 1;
    let bad = [
        (
            list(vec![row(&[], None)]),
            "row 1: it contradicts the entry of [(\"rows\", 64), (\"columns\", 1)]",
        ),
        (
            list(vec![row(&[], Some(narrow))]),
            "row 1: it contradicts the entry of [(\"rows\", 1000)",
        ),
        (
            list(vec![row(&[("columns", 5, 5)], Some(&foreign))]),
            "no entry of the key measured its choice",
        ),
        (far, "the range of rows is 32 to 1099511627777: give the least first, and at most 2^40"),
        (list(vec![row(&[("columns", 9, 8)], None)]), "the range of columns is 9 to 8"),
        (list(vec![row(&[("heads", 1, 8)], None)]), "row 1: it has no size \"heads\""),
        (list(vec![]), "it has 0 rows"),
        (list(vec![row(&[("rows", 1, 1)], None); 65]), "it has 65 rows"),
    ];
    for (list, expected) in bad {
        let mut document = base.clone();
        let error = document.decide(list.clone()).expect_err(expected);
        assert_eq!(*error.kind(), ProfileErrorKind::Decision);
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(document, base, "the good list stays");
        let text = base.to_string().replace(&base.decisions()[0].to_string(), &list.to_string());
        let parsed = Document::parse(&text).expect("the entries are good");
        assert_eq!(
            (parsed.document.decisions(), parsed.document.entries()),
            (&[][..], base.entries())
        );
        let [fault] = &parsed.faults[..] else { panic!("one fault: {:?}", parsed.faults) };
        assert_eq!(
            (fault.line, fault.column, fault.message.contains(expected)),
            (7, 9, true),
            "{fault}"
        );
    }
    let list = base.decisions()[0].to_string();
    let twice = base.to_string().replace(&list, &format!("{list}{list}"));
    let parsed = Document::parse(&twice).expect("the first is good");
    assert_eq!((&parsed.document, parsed.faults[0].line), (&base, 13));
}

#[test]
fn what_the_device_can_move_is_kept_and_the_greater_bandwidth_wins() {
    let of = |l2, bytes, bytes_per_second| Attainable { l2, bytes, bytes_per_second };
    let mut one = document([entry("copy", 64, 1)]);
    for attainable in
        [of(L2::Hot, 1024, 9), of(L2::Cold, 2048, 5), of(L2::Cold, 1024, 7), of(L2::Cold, 2048, 6)]
    {
        one.add_attainable(attainable).expect("valid");
    }
    let kept = [of(L2::Cold, 1024, 7), of(L2::Cold, 2048, 6), of(L2::Hot, 1024, 9)];
    assert_eq!(one.attainable(), kept);
    let text = one.to_string();
    assert!(text.starts_with("(\n    schema: 2,"), "{text}");
    assert_eq!(Document::parse(&text).expect("its own text").document, one);
    let mut other = document([]);
    other.add_attainable(of(L2::Cold, 1024, 8)).expect("valid");
    other.merge(&one).expect("one device");
    assert_eq!(other.attainable()[0].bytes_per_second, 8);
    let (profile, _) = Profile::from_document(other, &device(), &environment());
    assert_eq!(profile.attainable(L2::Cold, 2047), Some(of(L2::Cold, 1024, 8)));
    assert_eq!(profile.attainable(L2::Cold, 4096), None);
    for wrong in [of(L2::Cold, 3, 1), of(L2::Cold, 0, 1), of(L2::Cold, 4, 0)] {
        one.add_attainable(wrong).expect_err("no power of two, or no bandwidth");
    }
    let error =
        Document::parse(&text.replace("bytes: 1024", "bytes: 1000")).expect_err("no power of two");
    assert!(error.to_string().contains("give a power of two"), "{error}");
}

#[test]
fn an_entry_that_disagrees_removes_the_list_and_a_merge_makes_a_new_one() {
    let base = decided();
    let mut other = entry("copy", 2000, 16);
    other.choice = StoredChoice::Whole;
    let mut inserted = base.clone();
    inserted.insert(other.clone()).expect("valid");
    assert_eq!(inserted.decisions(), []);
    let mut pruned = base.clone();
    pruned.retain(|entry| entry.shape[0].1 != 4096);
    assert_eq!(pruned.decisions(), [], "no entry measured the second row's choice");
    let mut merged = base.clone();
    merged.merge(&document([other.clone()])).expect("one device");
    let mut back = document([other]);
    back.merge(&base).expect("one device");
    assert_eq!(merged, back);
    let decision = &merged.decisions()[0];
    assert_ne!(decision, &base.decisions()[0]);
    assert_eq!(
        decision.rows[decision.row(&[2000, 16]).expect("measured")].choice,
        StoredChoice::Whole
    );
    let mut again = merged.clone();
    again.merge(&base).expect("one device");
    assert_eq!(again, merged);
    // A measured choice of the first document may be greater.
    let mut agreeing = base.clone();
    agreeing.merge(&document([entry("copy", 64, 1)])).expect("one device");
    assert_eq!(agreeing, base);
}

#[test]
fn a_merge_decides_in_linear_time_and_leaves_out_lists_that_would_be_too_long() {
    let measured = |document: &mut Document, kernel: &str, shapes: u64| {
        let one = |number: u64| Entry {
            parameters: vec![(kernel.into(), 1)],
            ..entry(kernel, 1 + number * 7919 % 6000, 1 + number * 104_729 % 6000)
        };
        *document = self::document(document.entries.iter().cloned().chain((0..shapes).map(one)));
    };
    let mut base =
        document([Entry::confirmed(key("few"), entry("few", 3, 3).shape, String::new())]);
    // Each shape of each kernel has another choice.
    measured(&mut base, "few", 40);
    measured(&mut base, "many", 5000);
    let decided = |kernel: &str| {
        let rows = vec![row(&[("rows", 7, 7)], None), row(&[], None)];
        let within = vec![("rows".into(), (7, 8)), ("columns".into(), (7, 8))];
        DecisionList { key: key(kernel), within, rows }
    };
    base.decisions = ["few", "many"].map(decided).into();
    let other = document(["few", "many"].map(|kernel| entry(kernel, 7, 7)));
    base.merge(&other).expect("one device");
    let keys: Vec<&str> = base.decisions().iter().map(|list| &*list.key.kernel).collect();
    assert_eq!((keys, base.entries().len()), (vec!["few"], 5043));
}
