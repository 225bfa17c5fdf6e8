//! Errors that surface late.

use crate::programs::{Driver, preloaded, run};

/// Launch number `launch` of the program faults.
fn faulting(launch: &str, words: &str, options: &[(&str, &str)]) -> String {
    let mut command = preloaded(Driver::Whole, words);
    command.env("GRIDGUARD_FAKE_FAULT_LAUNCH", launch).envs(options.iter().copied());
    run(command.env("GRIDGUARD_RUN_QUIET", "1")).err
}

#[test]
fn the_launches_that_no_synchronisation_proved_are_suspects() {
    let err = faulting("3", "query-12 good good wait good good wait wait", &[]);
    assert_eq!(
        err,
        "\
gridguard: cuStreamSynchronize returned CUDA_ERROR_ILLEGAL_ADDRESS (700), an illegal memory access was \
encountered: a launch that was accepted before failed on the device
  suspects  2 launches since the last synchronisation, newest first:
            touch(float*, int), grid 1 x 6000 x 1
            touch(float*, int), grid 1 x 6000 x 1
  next      run again with `gridguard run --sync`, which names the launch
"
    );
}

#[test]
fn a_single_suspect_is_the_launch() {
    for wait in ["wait", "wait-all"] {
        let err = faulting("1", &format!("dlsym good {wait} good good"), &[]);
        let expected = "gridguard: cuLaunchKernel returned CUDA_ERROR_ILLEGAL_ADDRESS (700), an illegal \
                        memory access was encountered: a launch that was accepted before failed on the \
                        device\n  launch    the only one that was not known to have succeeded:\n            \
                        touch(float*, int), grid 1 x 6000 x 1\n";
        assert_eq!(err, expected);
    }
}

#[test]
fn waiting_for_each_launch_names_the_faulting_one() {
    let err = faulting("3", "dlsym good good good good good", &[("GRIDGUARD_RUN_SYNC", "1")]);
    assert!(
        err.starts_with("gridguard: cuLaunchKernel returned CUDA_ERROR_ILLEGAL_ADDRESS"),
        "{err}"
    );
    assert!(err.contains("  launch    the only one"), "{err}");
    assert_eq!(err.lines().count(), 3, "{err}");
}

#[test]
fn a_late_error_is_an_error_for_log_collectors() {
    let err = faulting("0", "dlsym good wait", &[("GRIDGUARD_RUN_FORMAT", "json")]);
    let record: serde_json::Value = serde_json::from_str(&err).unwrap();
    assert_eq!(record["SeverityText"], "ERROR", "{err}");
    assert!(record["Body"].as_str().unwrap().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{err}");
}
