//! Reports and recorded launches.

use std::path::Path;

use gridguard::DeviceLimits;
use gridguard::check::{CheckRequest, Legality};
use gridguard::watched::WatchReport;

use crate::programs::{Driver, preloaded, run, watched};

fn read(path: &Path) -> WatchReport {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_report_has_all_kernels_and_refusals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let words = "dlsym good refused good ex kernel good";
    let err = run(preloaded(Driver::Whole, words)
        .env("GRIDGUARD_RUN_REPORT", &path)
        .env("GRIDGUARD_RUN_QUIET", "1"))
    .err;
    assert_eq!(err.matches("gridguard:").count(), 2, "{err}");
    let report = read(&path);
    assert_eq!((report.format, report.launches, report.refused), (1, 4, 2));
    assert_eq!(report.launches_after_refusal, 3);
    assert!(report.program.ends_with("/launches"), "{}", report.program);
    assert_eq!(report.devices[0].name, "NVIDIA H200");
    let kernels: Vec<_> = report.kernels.iter().map(|one| (one.launches, one.refused)).collect();
    assert_eq!(kernels, [(3, 2), (1, 0)]);
    assert_eq!((&*report.kernels[0].name, report.kernels[0].max_grid.y), ("_Z5touchPfi", 6000));
    let [first, second] = &*report.refusals else { panic!("{:?}", report.refusals) };
    assert_eq!((first.code, first.request.grid.y, second.code), (1, 70_000, 912));
    assert!(first.violations[0].starts_with("grid.y is 70000 blocks"), "{first:?}");
    assert!(!first.stack.is_empty());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else was written");
}

#[test]
fn each_process_writes_a_report_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    for _ in 0..2 {
        run(preloaded(Driver::Whole, "dlsym good").env("GRIDGUARD_RUN_REPORT", &path));
    }
    let reports: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| read(&entry.unwrap().path()).process)
        .collect();
    assert!(reports.len() == 2 && reports[0] != reports[1], "{reports:?}");
}

#[test]
fn a_report_that_cannot_be_written_is_said_and_changes_nothing() {
    let ran =
        run(preloaded(Driver::Whole, "dlsym good").env("GRIDGUARD_RUN_REPORT", "/nowhere/at.json"));
    assert!(ran.status.success());
    assert!(
        ran.err.contains("gridguard: cannot write /nowhere/at.json: No such file"),
        "{}",
        ran.err
    );
}

#[test]
fn recorded_launches_are_requests_that_can_be_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launches.jsonl");
    run(preloaded(Driver::Whole, "dlsym good good ex good").env("GRIDGUARD_RUN_RECORD", &path));
    let text = std::fs::read_to_string(&path).unwrap();
    let requests: Vec<CheckRequest> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(requests.len(), 2, "each kind once: {text}");
    assert_eq!((&*requests[0].name, requests[0].request.grid.y), ("_Z5touchPfi", 6000));
    assert_eq!(requests[0].kernel.registers_per_thread, 32);
    assert_eq!(requests[1].request.cluster.map(|cluster| cluster.y), Some(8));
    let any = DeviceLimits::any_device();
    let on_any: Vec<_> = requests.iter().map(|request| request.check(&any).legality).collect();
    assert_eq!(on_any, [Legality::Legal, Legality::Rejected], "no clusters on every device");
}

#[test]
fn a_quiet_program_prints_no_summary() {
    let ran = run(preloaded(Driver::Whole, "dlsym good").env("GRIDGUARD_RUN_QUIET", "1"));
    assert_eq!(ran.err, "");
    assert!(watched(Driver::Whole, "dlsym good").starts_with("gridguard: 1 launch of 1 kernel"));
}
