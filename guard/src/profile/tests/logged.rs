//! The miss log and its file.

use super::super::*;
use super::key;

const NAMES: [&str; 2] = ["rows", "columns"];

/// Writes the log, and returns the number of shapes in the file.
fn written(log: &MissLog, path: &std::path::Path) -> usize {
    log.write(path).expect("written").entries
}

#[test]
fn shapes_that_a_write_loses_are_reported_and_copied() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("misses.ron");
    let log = MissLog::new(1);
    log.record(&key("copy"), &NAMES, &[5, 1], MatchKind::Default);
    assert_eq!(written(&log, &path), 1);
    let good = std::fs::read_to_string(&path).expect("text");
    std::fs::write(&path, good.replace("seen: 1", "seen: often")).expect("writes");
    log.record(&key("copy"), &NAMES, &[7, 1], MatchKind::Default);
    let published = log.write(&path).expect("written");
    assert_eq!((published.entries, published.faults.len()), (1, 1));
    assert_eq!(published.backup, Some(folder.path().join("misses.ron.bak")));
}

#[test]
fn misses_are_counted_by_shape_and_an_exact_match_is_not_recorded() {
    let log = MissLog::new(10);
    for rows in [5, 3, 5] {
        log.record(&key("copy"), &NAMES, &[rows, 1], MatchKind::Default);
    }
    log.record(&key("copy"), &NAMES, &[9, 1], MatchKind::Exact);
    let seen: Vec<_> = log.snapshot().iter().map(|one| (one.shape[0].1, one.seen)).collect();
    assert_eq!(seen, [(3, 1), (5, 2)]);
    assert_eq!(log.dropped(), 0);
}

#[test]
fn a_full_log_drops_new_shapes_and_counts_known_ones() {
    let log = MissLog::new(1);
    for rows in [5, 3, 5] {
        log.record(&key("copy"), &NAMES, &[rows, 1], MatchKind::Default);
    }
    assert_eq!(log.snapshot()[0].seen, 2);
    assert_eq!((log.snapshot().len(), log.dropped()), (1, 1));
}

#[test]
fn a_size_of_zero_after_the_items_is_logged_and_read_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("misses.ron");
    let log = MissLog::new(10);
    log.record(&key("pad"), &NAMES, &[5, 0], MatchKind::Default);
    assert_eq!((log.dropped(), written(&log, &path)), (0, 1));
    let read = MissLog::read(&path).expect("reads").expect("is there");
    assert_eq!((read.faults.len(), read.shapes[0].shape[1].1), (0, 0));
}

#[test]
fn a_shape_that_no_file_accepts_is_dropped() {
    let log = MissLog::new(10);
    log.record(&key("copy"), &NAMES, &[5], MatchKind::Default);
    log.record(&key("copy"), &NAMES, &[0, 5], MatchKind::Default);
    log.record(&key(&"k".repeat(65)), &NAMES, &[5, 5], MatchKind::Default);
    assert_eq!((log.snapshot().len(), log.dropped()), (0, 3));
}

#[test]
fn writing_adds_to_the_file_and_empties_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("misses.ron");
    assert_eq!(MissLog::read(&path), Ok(None));
    let log = MissLog::new(10);
    for (rows, shapes) in [(5, 1), (5, 1), (7, 2)] {
        log.record(&key("copy"), &NAMES, &[rows, 1], MatchKind::Bucket);
        assert_eq!(written(&log, &path), shapes);
        assert_eq!(log.snapshot(), []);
    }
    let read = MissLog::read(&path).expect("reads").expect("is there");
    assert_eq!(read.faults, []);
    let seen: Vec<_> = read.shapes.iter().map(|one| (one.shape[0].1, one.seen)).collect();
    assert_eq!(seen, [(5, 2), (7, 1)]);
    assert_eq!(read.shapes[0].key.source, "", "the current code is tuned next");
    assert_eq!(read.shapes[0].served, MatchKind::Bucket);
    let text = std::fs::read_to_string(&path).expect("text");
    assert_eq!(
        text,
        "(\n    schema: 1,\n    shapes: [\n        (kernel: \"copy\", variant: \"\", dtypes: \"f16\", \
         policy: (l2: cold, submission: eager), objective: throughput, shape: [(\"rows\", 5), \
         (\"columns\", 1)], seen: 2, served: bucket),\n        (kernel: \"copy\", variant: \"\", \
         dtypes: \"f16\", policy: (l2: cold, submission: eager), objective: throughput, shape: \
         [(\"rows\", 7), (\"columns\", 1)], seen: 1, served: bucket),\n    ],\n)\n"
    );
}

#[test]
fn a_log_that_cannot_be_written_keeps_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = MissLog::new(10);
    log.record(&key("copy"), &NAMES, &[5, 1], MatchKind::Bucket);
    let refused = log.write(folder.path()).expect_err("a folder is no file");
    assert!(*refused.kind() == ProfileErrorKind::NotReplaced, "{refused}");
    assert_eq!(log.snapshot()[0].seen, 1);
}

#[test]
fn a_file_by_hand_needs_kernel_types_and_shape_and_a_bad_line_costs_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("shapes.ron");
    let text = "(schema: 1, shapes: [\n (kernel: \"copy\", dtypes: \"f16\", shape: [(\"rows\", 5)]),\n \
                (kernel: \"copy\", dtypes: \"f16\", shape: [(\"rows\", 0)]),\n \
                (kernel: \"sum\", shape: [(\"rows\", 5)]),\n \
                (kernel: \"sum\", dtypes: \"f32\", shape: [(\"rows\", 6)], seen: 3)\n])";
    std::fs::write(&path, text).expect("writes");
    let read = MissLog::read(&path).expect("reads").expect("is there");
    let seen: Vec<_> = read.shapes.iter().map(|one| (&*one.key.kernel, one.seen)).collect();
    assert_eq!(seen, [("copy", 1), ("sum", 3)]);
    let lines: Vec<_> = read.faults.iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [3, 4], "{:?}", read.faults);
    std::fs::write(&path, "(schema: 7, shapes: [])").expect("writes");
    assert_eq!(MissLog::read(&path), Err(ProfileError::schema(7)));
    // A profile is no file of shapes.
    std::fs::write(&path, super::document([]).to_string()).expect("writes");
    let refused = MissLog::read(&path).expect_err("a profile");
    assert!(matches!(refused.kind(), ProfileErrorKind::Header(_)), "{refused}");
}
