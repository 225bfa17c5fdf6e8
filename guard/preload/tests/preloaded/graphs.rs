//! Kernel nodes of graphs.

use crate::programs::{Driver, graphs, reported, same};

/// What the library wrote about `graphs LOOKUP ACTION...` with these settings of the fake driver. The program
/// prints and returns the same without the library.
#[track_caller]
fn watched(driver: Driver, words: &str, settings: &[(&str, &str)]) -> String {
    let command = || {
        let mut command = graphs(driver, words);
        command.envs(settings.iter().copied());
        command
    };
    same(command().env_remove("LD_PRELOAD"), &mut command())
}

const LATE: [(&str, &str); 1] = [("GRIDGUARD_FAKE_LATE_NODES", "1")];

#[test]
fn a_node_that_the_driver_refuses_is_explained() {
    let err = watched(Driver::Whole, "13000 add=5 add=70000 add=6 instantiate launch", &[]);
    for line in [
        ", kernel node of a graph\n",
        "  rule      grid-dim-y: grid.y is 70000 blocks",
        "  before    1 launch of this kernel succeeded, with grid 1 x 5 x 1\n",
        "gridguard: 2 launches of 1 kernel accepted, 1 refused\n  warning: ",
    ] {
        assert!(err.contains(line), "{line}{err}");
    }
    assert!(err.contains("  library   ") && err.contains("  stack     graphs+0x"), "{err}");
}

#[test]
fn every_call_that_adds_or_sets_a_node_is_watched() {
    let calls = "add=1 add=70000 set=70001 instantiate update=70002";
    let newer = "add-any=1 add-any=70003 add-handle=70004 set-any=70005 update-any=70006";
    for lookup in ["dlsym", "11080", "12020", "13000"] {
        let newer = if lookup.starts_with('1') && lookup > "12" { newer } else { "" };
        let words = format!("{lookup} {calls} {newer}");
        let err = watched(Driver::Whole, words.trim_end(), &[]);
        let (accepted, refused) = if newer.is_empty() { (1, 3) } else { (2, 7) };
        let summary =
            format!("{accepted} {} of", if accepted == 1 { "launch" } else { "launches" });
        assert!(err.contains(&summary), "{lookup}: {err}");
        assert!(err.contains(&format!(" accepted, {refused} refused\n")), "{lookup}: {err}");
        assert!(!err.contains("not watched"), "{lookup}: {err}");
    }
}

#[test]
fn a_graph_that_is_not_instantiated_names_the_nodes_that_are_the_reason() {
    for (lookup, call) in [
        ("dlsym", "instantiate"),
        ("11080", "instantiate"),
        ("13000", "instantiate"),
        ("dlsym", "instantiate-flags"),
        ("13000", "instantiate-params"),
    ] {
        let words = format!("{lookup} add=5 add=70000 child add=3 {call}");
        let (ran, report) = reported(graphs(Driver::Whole, &words).envs(LATE));
        let err = ran.err;
        assert_eq!(err.matches("launch refused").count(), 1, "{words}: {err}");
        assert!(err.contains("rule      grid-dim-y: grid.y is 70000 blocks"), "{words}: {err}");
        assert_eq!((report.launches, report.refused), (2, 1), "{words}");
        assert_eq!(
            report.kernels[0].max_grid.y, 5,
            "what was refused later is not counted: {words}"
        );
        assert_eq!(report.refusals[0].request.grid.y, 70_000);
    }
    // A driver without the newer functions.
    let err = watched(Driver::Old, "dlsym add=70000 instantiate", &LATE);
    assert!(err.contains("grid.y is 70000 blocks"), "{err}");
}

#[test]
fn of_a_large_graph_only_the_nodes_that_are_the_reason_are_named() {
    let words = "13000 many=20000 add=70000 add=70001 instantiate";
    let err = watched(Driver::Whole, words, &LATE);
    assert_eq!(err.matches("launch refused").count(), 1, "of one kind: {err}");
    assert!(err.contains("  before    20000 launches of this kernel succeeded"), "{err}");
    assert!(err.contains("20000 launches of 1 kernel accepted, 2 refused"), "{err}");
}

#[test]
fn attributes_of_a_node_are_checked_where_the_graph_is_not_instantiated() {
    let err = watched(Driver::Whole, "13000 add=16 add=9 cluster=8 instantiate instantiate", &[]);
    assert_eq!(err.matches("launch refused: CUDA_ERROR_INVALID_CLUSTER_SIZE").count(), 1, "{err}");
    assert!(err.contains(", cluster 1 x 8 x 1, kernel node of a graph\n"), "{err}");
    assert!(err.contains("grid.y (9) is not a multiple of the cluster size (8)"), "{err}");
    assert!(err.contains("2 launches of 1 kernel accepted, 2 refused"), "{err}");
}

#[test]
fn calls_that_fail_for_another_reason_are_no_refused_launches() {
    let words = "13000 add=5 no-kernel no-dependencies no-flags instantiate launch";
    let err = watched(Driver::Whole, words, &[]);
    assert!(err.starts_with("gridguard: 1 launch of 1 kernel accepted, 0 refused"), "{err}");
}

#[test]
fn a_replayed_graph_is_a_suspect_of_errors_that_surface_later() {
    let fault = [("GRIDGUARD_FAKE_FAULT_LAUNCH", "1"), ("GRIDGUARD_RUN_QUIET", "1")];
    let expected = "\
gridguard: cuStreamSynchronize returned CUDA_ERROR_ILLEGAL_ADDRESS (700), an illegal memory access was \
encountered: a launch that was accepted before failed on the device
  suspects  2 launches since the last synchronisation, newest first:
            the kernels of a graph, in one launch
            touch(float*, int), grid 1 x 7 x 1
  next      run again with `gridguard run --sync`, which names the launch
";
    let words = "13000 add=5 instantiate plain=7 launch wait";
    assert_eq!(watched(Driver::Whole, words, &fault), expected);
    let sync = [fault[0], fault[1], ("GRIDGUARD_RUN_SYNC", "1")];
    let err = watched(Driver::Whole, words, &sync);
    assert!(
        err.ends_with("succeeded:\n            the kernels of a graph, in one launch\n"),
        "{err}"
    );
    let err = watched(
        Driver::Whole,
        "13000 add=5 instantiate launch launch",
        &[("GRIDGUARD_FAKE_FAULT_LAUNCH", "0")],
    );
    assert!(err.contains("gridguard: cuGraphLaunch returned CUDA_ERROR_ILLEGAL_ADDRESS"), "{err}");
}

#[test]
fn an_oversized_node_is_not_fixed_and_says_so() {
    let err = watched(Driver::Whole, "dlsym add=70000", &[("GRIDGUARD_RUN_FIX", "1")]);
    assert!(
        err.contains("  fix       not possible: kernel nodes of graphs are not rewritten\n"),
        "{err}"
    );
}
