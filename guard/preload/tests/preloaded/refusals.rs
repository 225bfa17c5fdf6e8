//! What is printed about a refused launch.

use std::time::{Duration, Instant};

use expect_test::expect;
use gridguard_report::RefusedLaunch;
use serde_json::{Value, json};

use crate::programs::{Driver, preloaded, reported, run, watched, without_stack};

#[test]
fn a_refused_launch_is_explained_word_for_word() {
    let err = watched(Driver::Whole, "dlsym good good refused good");
    let expected = expect![[r#"
        gridguard: launch refused: CUDA_ERROR_INVALID_VALUE (1), invalid argument
          kernel    touch(float*, int)
          launch    grid 1 x 70000 x 1, block 128 x 1 x 1, 4096 bytes of dynamic shared memory
          device    NVIDIA H200
          rule      grid-dim-y: grid.y is 70000 blocks, the limit is 65535 (NVIDIA H200): split axis y into 2 launches of 35000, or fold it into x
          before    2 launches of this kernel succeeded, with grids up to 1 x 6000 x 1
        gridguard: 3 launches of 1 kernel accepted, 1 refused
          warning: the program went on with 1 launch after the first refused one: unless it handled the error, its results are stale
          refused: touch(float*, int), 1 time: grid.y is 70000 blocks, the limit is 65535 (NVIDIA H200)
    "#]];
    expected.assert_eq(&without_stack(&err));
    assert!(err.contains("  library   ") && err.contains("  stack     launches+0x"), "{err}");
}

#[test]
fn a_repeated_refusal_is_counted_and_not_repeated() {
    let err = watched(Driver::Whole, "dlsym refused again cooperative");
    assert_eq!(err.matches("launch refused").count(), 2, "{err}");
    assert!(err.contains("0 launches of 1 kernel accepted, 1002 refused"), "{err}");
    assert!(!err.contains("warning"), "{err}");
}

#[test]
fn clusters_and_cooperative_grids_are_explained_too() {
    let err = without_stack(&watched(Driver::Whole, "query-12 ex cooperative"));
    for line in [
        "gridguard: launch refused: CUDA_ERROR_INVALID_CLUSTER_SIZE (912), a kernel launch error has \
         occurred due to cluster misconfiguration\n",
        "  launch    grid 1 x 9 x 1, block 128 x 1 x 1, 0 bytes of dynamic shared memory, cluster 1 x 8 x 1\n",
        "  rule      cluster-divides-grid: grid.y (9) is not a multiple of the cluster size (8): pad the \
         axis to 16 blocks, or use a cluster that divides it\n",
        "  launch    grid 100000 x 1 x 1, block 1024 x 1 x 1, 0 bytes of dynamic shared memory, cooperative\n",
        "  rule      cooperative-residency: cooperative grid has 100000 blocks, only 264 can be co-resident \
         (NVIDIA H200): use fewer blocks, each looping over several items\n",
    ] {
        assert!(err.contains(line), "{line}{err}");
    }
}

#[test]
fn a_launch_that_fails_for_another_reason_is_said_to_break_no_known_rule() {
    let err = run(preloaded(Driver::Whole, "dlsym good")
        .env("GRIDGUARD_FAKE_FAIL_LAUNCH", "0")
        .env("GRIDGUARD_FAKE_FAIL_CODE", "801"))
    .err;
    assert!(err.starts_with("gridguard: launch refused: CUDA_ERROR_NOT_SUPPORTED (801)"), "{err}");
    assert!(err.contains("  rule      none that is known here is broken"), "{err}");
}

#[test]
fn the_program_is_aborted_where_that_was_asked_for() {
    use std::os::unix::process::ExitStatusExt;
    let ran =
        run(preloaded(Driver::Whole, "dlsym good refused good").env("GRIDGUARD_RUN_ABORT", "1"));
    assert_eq!(ran.status.signal(), Some(6), "{}", ran.err);
    assert!(ran.err.contains("launch refused"), "{}", ran.err);
}

#[test]
fn an_unreadable_or_closed_standard_error_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    let err = watched(Driver::Whole, &format!("dlsym closed={} refused good", other.display()));
    assert_eq!(err, "");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "");
    // The reader has gone: no signal reaches the program.
    assert_eq!(watched(Driver::Whole, "dlsym pipe"), "");
}

#[test]
fn a_full_standard_error_delays_the_program_by_a_second_at_most() {
    watched(Driver::Whole, "dlsym good");
    for action in ["good", "refused"] {
        let begin = Instant::now();
        assert_eq!(watched(Driver::Whole, &format!("dlsym full={action}")), "");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

#[test]
fn threads_with_small_stacks_and_programs_without_memory_go_on() {
    let err = watched(Driver::Whole, "dlsym small small");
    assert_eq!(err.matches("launch refused").count(), 1, "{err}");
    assert!(err.contains("2 launches of 1 kernel accepted, 2 refused"), "{err}");
    let err = watched(Driver::Whole, "dlsym no-memory good refused good again ex");
    assert!(
        err.contains("launch refused") && err.contains("1 kernel accepted, 1002 refused"),
        "{err}"
    );
}

#[test]
fn the_next_wait_raises_the_error_of_a_refused_launch_once() {
    for wait in ["wait", "wait-all"] {
        let words = format!("dlsym good {wait} refused good {wait} {wait}");
        let raised = run(preloaded(Driver::Whole, &words).env("GRIDGUARD_RUN_RAISE", "1"));
        let lines: Vec<&str> = raised.out.lines().filter(|line| line.starts_with("wait")).collect();
        assert_eq!(lines, [0, 1, 0].map(|status| format!("{wait} {status}")), "{}", raised.out);
        assert!(raised.err.contains("launch refused"), "{}", raised.err);
    }
}

#[test]
fn the_refused_launches_of_a_part_of_the_work_are_given_to_the_program() {
    let words = "dlsym refused watch=good,refused,again,cooperative refused watch=good";
    let ran = run(&mut preloaded(Driver::Whole, words));
    let documents: Vec<Value> = ran
        .out
        .lines()
        .filter(|line| line.starts_with('['))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(documents.len(), 2, "{}", ran.out);
    assert_eq!(documents[1], Value::Array(Vec::new()));
    let times: Vec<_> = documents[0].as_array().unwrap().iter().map(|one| &one["times"]).collect();
    assert_eq!(times, [1001, 1], "{}", ran.out);
    let launch: RefusedLaunch = serde_json::from_value(documents[0][0]["launch"].clone()).unwrap();
    assert_eq!((&*launch.kernel, launch.request.grid.y), ("_Z5touchPfi", 70_000));
    assert!(launch.violations[0].starts_with("grid.y is 70000 blocks"), "{launch:?}");
    for problem in ["another", "still kept", "not preloaded"] {
        assert!(!ran.out.contains(problem), "{}", ran.out);
    }
    assert_eq!(ran.err.matches("launch refused").count(), 3, "{}", ran.err);
    let plain = run(&mut crate::programs::plain(Driver::Whole, words)).out;
    assert_eq!(plain.matches("not preloaded\n").count(), 2, "{plain}");
}

#[test]
fn messages_come_as_lines_for_log_collectors_and_as_annotations() {
    let with = |format: &str| {
        run(preloaded(Driver::Whole, "dlsym good refused").env("GRIDGUARD_RUN_FORMAT", format)).err
    };
    let records: Vec<Value> =
        with("json").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [refused, summary] = &*records else { panic!("{records:?}") };
    assert_eq!(
        (&refused["SeverityText"], &summary["SeverityText"]),
        (&json!("ERROR"), &json!("INFO"))
    );
    assert_eq!(refused["Attributes"]["cuda.kernel"], "_Z5touchPfi");
    assert_eq!(refused["Attributes"]["cuda.grid"], json!([1, 70_000, 1]));
    assert!(refused["Body"].as_str().unwrap().starts_with("gridguard: launch refused: "));
    assert!(refused["Timestamp"].as_str().unwrap().len() >= 19, "nanoseconds: {refused}");
    assert!(summary["Body"].as_str().unwrap().contains("1 launch of 1 kernel accepted, 1 refused"));
    let annotations = with("github");
    let lines: Vec<&str> = annotations.lines().collect();
    let [refused, summary] = &*lines else { panic!("{annotations}") };
    assert!(refused.starts_with("::error title=gridguard%3A launch refused%3A "), "{refused}");
    assert!(refused.contains("%0A  kernel    touch(float*, int)%0A"), "{refused}");
    assert!(summary.starts_with("::notice title="), "{summary}");
    assert!(with("other").starts_with("gridguard: launch refused"));
}

#[test]
fn the_driver_s_own_sentence_is_quoted() {
    let command = || {
        let mut command = preloaded(Driver::Whole, "query-12 refused good ex");
        command.env("GRIDGUARD_FAKE_LOGS", "1");
        command
    };
    let err = run(&mut command()).err;
    let sentence = "Grid Dimension Y of 70000 exceeds maximum value of";
    assert!(err.contains(&format!("or fold it into x\n  driver    {sentence}")), "{err}");
    assert_eq!(err.matches("  driver    ").count(), 1, "not beside another refusal: {err}");
    let (_, report) = reported(&mut command());
    let log = report.refusals[0].driver_log.as_deref();
    assert!(log.is_some_and(|log| log.starts_with(sentence)), "{log:?}");
    assert_eq!(report.refusals[1].driver_log, None);
}
