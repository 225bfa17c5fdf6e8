//! Reports and recorded launches.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use gridguard::DeviceLimits;
use gridguard::check::{CheckRequest, Legality};
use gridguard_report::WatchReport;

use crate::programs::{Driver, preloaded, run, watched, without_room};

fn read(path: &Path) -> WatchReport {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
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
    assert_eq!(kernels, [(4, 2)], "of a module and of a library, but one of one image");
    assert_eq!((&*report.kernels[0].name, report.kernels[0].max_grid.y), ("_Z5touchPfi", 6000));
    let [first, second] = &*report.refusals else { panic!("{:?}", report.refusals) };
    assert_eq!((first.code, first.request.grid.y, second.code), (1, 70_000, 912));
    assert!(first.violations[0].starts_with("grid.y is 70000 blocks"), "{first:?}");
    assert!(!first.stack.is_empty());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else was written");
}

#[test]
fn each_process_writes_a_report_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    for _ in 0..2 {
        run(preloaded(Driver::Whole, "dlsym good").env("GRIDGUARD_RUN_REPORT", &path));
    }
    let reports: Vec<_> = fs::read_dir(folder.path())
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
        ran.err.contains(
            "gridguard: cannot write /nowhere/at.json: creating a temporary file: No such file"
        ),
        "{}",
        ran.err
    );
}

/// Beyond the limit on the size of files a write raises a signal, whose default ends the program.
#[test]
fn a_limit_on_the_size_of_files_changes_nothing_but_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for (variable, told) in [
        ("GRIDGUARD_RUN_REPORT", "writing a temporary file: File too large"),
        ("GRIDGUARD_RUN_RECORD", "1 kind of launches could not be recorded"),
    ] {
        let mut command = preloaded(Driver::Whole, "dlsym good refused good");
        let ran = run(&mut without_room(command.env(variable, folder.path().join("file"))));
        assert!(ran.status.success() && ran.out.ends_with("good 0\n"), "{ran:?}");
        assert!(ran.err.contains(told), "{}", ran.err);
    }
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn recorded_launches_are_requests_that_can_be_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launches.jsonl");
    run(preloaded(Driver::Whole, "dlsym good good ex good").env("GRIDGUARD_RUN_RECORD", &path));
    let text = fs::read_to_string(&path).unwrap();
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
fn links_that_somebody_planted_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("victim"), "of someone").unwrap();
    // The names that follow from the number of the process, and those that were named.
    for (planted, report, record) in [
        ("report.$$.new.json report.$$.json", "report.json", "record"),
        ("report.json report.$$.json", "report.json", "record"),
        ("record", "none.json", "record"),
    ] {
        fs::write(path("report.json"), "no report").unwrap();
        let command = preloaded(Driver::Whole, "dlsym good");
        let program = command.get_program().to_owned();
        let plant =
            format!("for name in {planted}; do ln -sf victim $name; done; exec \"$0\" dlsym good");
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(plant).arg(program).current_dir(folder.path());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.env("GRIDGUARD_RUN_REPORT", path(report)).env("GRIDGUARD_RUN_RECORD", path(record));
        let ran = run(&mut shell);
        assert!(ran.status.success(), "{}", ran.err);
        assert_eq!(fs::read_to_string(path("victim")).unwrap(), "of someone", "{planted}");
        for left in fs::read_dir(folder.path()).unwrap() {
            let left = left.unwrap();
            let name = left.file_name().into_string().unwrap();
            assert!(!name.ends_with(".tmp"), "{name}");
            if name != "victim" {
                fs::remove_file(left.path()).unwrap();
            }
        }
    }
}

#[test]
fn a_file_beside_which_a_report_is_written_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    fs::write(&path, "no report").unwrap();
    run(preloaded(Driver::Whole, "dlsym good").env("GRIDGUARD_RUN_REPORT", &path));
    assert_eq!(fs::read_to_string(&path).unwrap(), "no report");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    for (name, why) in [("folder", "is a folder"), ("link", "is a link")] {
        let path = folder.path().join(name);
        if name == "link" {
            symlink("nothing", &path).unwrap();
        } else {
            fs::create_dir(&path).unwrap();
        }
        let ran = run(preloaded(Driver::Whole, "dlsym good").env("GRIDGUARD_RUN_REPORT", &path));
        assert!(ran.status.success() && ran.err.contains(why), "{name}: {}", ran.err);
    }
}

#[test]
fn at_most_a_thousand_further_processes_write_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    run(preloaded(Driver::Whole, "dlsym good").env("GRIDGUARD_RUN_REPORT", &path));
    for number in 0..999 {
        fs::write(folder.path().join(format!("report.{}.json", 5_000_000 + number)), "").unwrap();
    }
    let ran = || run(preloaded(Driver::Whole, "dlsym good").env("GRIDGUARD_RUN_REPORT", &path));
    assert!(!ran().err.contains("cannot write"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1001);
    let err = ran().err;
    let why = "1000 reports of other processes are beside it";
    assert!(err.contains(why), "{err}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1001);
}

#[test]
fn kernels_are_counted_by_name_and_image_however_often_they_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let record = folder.path().join("record");
    for (driver, way) in
        [(Driver::Whole, "dlsym"), (Driver::Whole, "query-12"), (Driver::Old, "dlsym")]
    {
        for (action, rows, launches) in
            [("reload=300", 1, 300), ("images=100", 100, 2), ("names=300", 300, 1)]
        {
            for (reuse, fix) in [("0", "0"), ("1", "0"), ("0", "1"), ("1", "1")] {
                let _ = (fs::remove_file(&path), fs::remove_file(&record));
                let mut command = preloaded(driver, &format!("{way} {action}"));
                command.env("GRIDGUARD_RUN_REPORT", &path).env("GRIDGUARD_FAKE_REUSE", reuse);
                command.env("GRIDGUARD_RUN_RECORD", &record).env("GRIDGUARD_RUN_FIX", fix);
                let ran = run(&mut command);
                let report = read(&path);
                let told = (driver, way, action, reuse, fix);
                assert_eq!(report.kernels.len(), rows, "{told:?}: {}", ran.err);
                assert!(report.kernels.iter().all(|one| one.launches == launches), "{told:?}");
                let kinds = fs::read_to_string(&record).unwrap().lines().count();
                assert_eq!(kinds, rows, "{told:?}");
            }
        }
    }
}

#[test]
fn a_report_of_many_kernels_is_bounded_and_says_what_it_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    // Beyond 16,384 kernels others are not told apart.
    for (names, kernels) in [(10_000, 10_001), (20_000, 16_385)] {
        let words = format!("dlsym good refused names={names}");
        let _ = fs::remove_file(&path);
        let ran = run(preloaded(Driver::Whole, &words).env("GRIDGUARD_RUN_REPORT", &path));
        let launches = names + 1;
        let summary = format!("{launches} launches of {kernels} kernels accepted, 1 refused");
        assert!(ran.err.contains(&summary), "{}", ran.err);
        let unlisted =
            format!("and {} launches of further kernels, which no report lists", launches - 4096);
        assert!(ran.err.contains(&unlisted), "{}", ran.err);
        let report = read(&path);
        assert_eq!((report.launches, report.kernels.len()), (launches, 4096));
        let unlisted = (report.unlisted_kernels, report.unlisted_launches);
        assert_eq!(unlisted, (kernels - 4096, launches - 4096));
        assert_eq!(report.kernels[0].refused, 1);
        let bytes = fs::metadata(&path).unwrap().len();
        assert!(bytes < 4 << 20, "{bytes}");
    }
}

#[test]
fn a_quiet_program_prints_no_summary() {
    let ran = run(preloaded(Driver::Whole, "dlsym good").env("GRIDGUARD_RUN_QUIET", "1"));
    assert_eq!(ran.err, "");
    assert!(watched(Driver::Whole, "dlsym good").starts_with("gridguard: 1 launch of 1 kernel"));
}
