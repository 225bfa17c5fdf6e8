//! Children, programs that replace themselves, threads, signals.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use gridguard::Dim3;

use crate::programs::{Driver, plain, preloaded, reported, run, same, watched};

#[test]
fn a_child_that_launches_nothing_prints_nothing() {
    let err = watched(Driver::Whole, "dlsym good fork good");
    assert_eq!(err.matches("gridguard:").count(), 1, "{err}");
    assert!(err.contains("2 launches of 1 kernel accepted, 0 refused"), "{err}");
}

#[test]
fn a_child_counts_its_own_launches() {
    // The child inherits a driver that was set up, and launches with it: the fake one allows that.
    let err = watched(Driver::Whole, "dlsym good good child refused good");
    assert!(err.contains("1 launch of 1 kernel accepted, 1 refused"), "{err}");
    assert!(err.contains("2 launches of 1 kernel accepted, 0 refused"), "{err}");
    let err = watched(Driver::Whole, "dlsym child good");
    assert_eq!(err.matches("1 launch of 1 kernel accepted, 0 refused").count(), 1, "{err}");
}

#[test]
fn a_program_that_replaces_itself_is_watched_again() {
    let err = watched(Driver::Whole, "dlsym exec");
    assert!(err.contains("0 launches of 1 kernel accepted, 1 refused"), "{err}");
    assert!(err.contains("  refused: touch(float*, int), 1 time: grid.y"), "{err}");
}

#[test]
fn nonsense_in_the_variables_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let long = "a".repeat(100_000);
    let all =
        [&b"\xff\xfe\n"[..], b"99999999999999999999999", b"-1", b"/dev/fd/-1", long.as_bytes()];
    for name in ["BATCH", "FORMAT", "INDEX", "PROCESS", "PTX", "QUIET", "RECORD", "REPORT", "SYNC"]
    {
        for value in all.map(OsStr::from_bytes) {
            let mut with = preloaded(Driver::Whole, "dlsym good refused good");
            with.env(format!("GRIDGUARD_RUN_{name}"), value).current_dir(folder.path());
            same(&mut plain(Driver::Whole, "dlsym good refused good"), &mut with);
        }
    }
}

#[test]
fn launches_of_many_threads_are_all_counted() {
    let (ran, report) = reported(&mut preloaded(Driver::Whole, "query-12 threads"));
    assert!(ran.err.contains("8000 launches of 1 kernel accepted, 0 refused"), "{}", ran.err);
    assert_eq!(report.kernels[0].max_grid, Dim3::new(1, 1000, 1));
}

#[test]
fn a_signal_asks_for_the_summary_at_the_next_launch() {
    let err = watched(Driver::Whole, "dlsym good good end-at-once");
    assert_eq!(err, "", "without a regular end there is no summary");
    let without_handler = "dlsym good signal good good";
    let err = run(&mut preloaded(Driver::Whole, without_handler)).err;
    assert!(err.starts_with("gridguard: 2 launches of 1 kernel accepted"), "{err}");
    assert_eq!(err.matches("gridguard: 3 launches of 1 kernel accepted").count(), 1, "{err}");
}
