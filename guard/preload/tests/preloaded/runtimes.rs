//! Launches through a runtime that is a shared library.

use crate::programs::{library, run, same, test_program, with_runtime, without_stack};

/// What the library wrote about `PROGRAM ACTION...` with these settings of the fake runtime. The program prints
/// and returns the same without the library.
#[track_caller]
fn watched(words: &str, settings: &[(&str, &str)]) -> String {
    let command = || {
        let mut command = with_runtime(words);
        command.envs(settings.iter().copied());
        command
    };
    same(&mut command(), command().env("LD_PRELOAD", library()))
}

/// A runtime before CUDA 13, which compares launches with the limits of the device.
const OLD: (&str, &str) = ("GRIDGUARD_FAKE_RUNTIME_CHECKS", "2");
const NAMELESS: [(&str, &str); 1] = [("GRIDGUARD_FAKE_RUNTIME_NAMES", "0")];

#[test]
fn a_dimension_of_zero_is_explained_word_for_word() {
    for program in ["runtime", "runtime-linked"] {
        let err = watched(&format!("{program} good zero last last zero good"), &[]);
        let expected = "\
gridguard: launch refused: cudaErrorInvalidConfiguration (9), invalid configuration argument
  kernel    touch(float*, int)
  launch    grid 1 x 0 x 1, block 128 x 1 x 1, 4096 bytes of dynamic shared memory
  device    NVIDIA H200
  rule      grid-dim-zero: grid.y is 0 blocks, the minimum is 1 (CUDA): skip the launch if there is nothing \
to do, or declare a batch axis
  before    1 launch of this kernel succeeded, with grid 1 x 1 x 1
gridguard: 2 launches of 1 kernel accepted, 2 refused
  warning: the program went on with 1 launch after the first refused one: unless it handled the error, its \
results are stale
  refused: touch(float*, int), 2 times: grid.y is 0 blocks, the minimum is 1 (CUDA)
";
        assert_eq!(without_stack(&err), expected, "{program}");
        assert!(err.contains(&format!("/{program}\n")), "the library: {err}");
    }
}

#[test]
fn every_way_to_launch_is_watched() {
    for program in ["runtime", "runtime-linked"] {
        for (action, what) in [
            ("empty", "block.y is 0 threads"),
            ("zero-thread", "grid.y is 0 blocks"),
            ("zero-handle", "grid.y is 0 blocks"),
            ("zero-cooperative", "shared memory, cooperative\n"),
            ("zero-ex", "shared memory, cluster 1 x 2 x 1\n"),
        ] {
            let err = watched(&format!("{program} good good-handle {action} last"), &[]);
            assert!(err.contains("2 launches of 1 kernel accepted, 1 refused"), "{action}: {err}");
            assert_eq!(err.matches("launch refused").count(), 1, "{action}: {err}");
            assert!(err.contains(what), "{action}: {err}");
        }
    }
}

#[test]
fn what_the_driver_refuses_is_reported_once_and_comes_from_the_program() {
    for program in ["runtime", "runtime-linked"] {
        let err = watched(&format!("{program} good refused"), &[]);
        assert!(err.contains("1 launch of 1 kernel accepted, 1 refused"), "{err}");
        assert!(err.contains(&format!("/{program}\n")), "the library: {err}");
        assert!(!err.contains("libgridguard_preload.so"), "{err}");
        // A runtime that leaves the check to the driver.
        let err =
            watched(&format!("{program} zero last"), &[("GRIDGUARD_FAKE_RUNTIME_CHECKS", "0")]);
        assert!(err.contains("launch refused: CUDA_ERROR_INVALID_VALUE (1)"), "{err}");
        assert!(err.contains("0 launches of 1 kernel accepted, 1 refused"), "{err}");
    }
}

#[test]
fn a_runtime_without_names_keeps_its_last_error_and_the_host_function_is_named() {
    // The questions fail, and would be the last error.
    let err = watched("runtime-linked good zero last last", &NAMELESS);
    assert!(err.contains("  kernel    host_stub(float*, int)\n"), "{err}");
    assert!(!err.contains("  before    "), "{err}");
    let err = watched("runtime good zero last last", &NAMELESS);
    assert!(err.contains("  kernel    runtime+0x"), "{err}");
}

#[test]
fn a_launch_that_is_refused_before_the_driver_is_loaded_is_explained() {
    let err = watched("runtime-linked zero empty", &NAMELESS);
    assert!(err.contains("  device    generic CUDA device\n"), "{err}");
    assert!(err.contains("0 launches of 1 kernel accepted, 2 refused"), "{err}");
    // Afterwards the device is known.
    let err = watched("runtime-linked zero good empty", &NAMELESS);
    assert!(err.contains("  device    NVIDIA H200\n"), "{err}");
}

#[test]
fn what_an_old_runtime_refuses_is_explained_as_what_the_driver_refuses() {
    for program in ["runtime", "runtime-linked"] {
        let err = watched(&format!("{program} good refused last last good"), &[OLD]);
        let error = "cudaErrorInvalidConfiguration (9), invalid configuration argument";
        assert!(
            err.starts_with(&format!("gridguard: launch refused: {error}\n")),
            "{program}: {err}"
        );
        assert!(err.contains("  kernel    touch(float*, int)\n"), "{program}: {err}");
        assert!(err.contains("  rule      grid-dim-y: grid.y is 70000 blocks"), "{program}: {err}");
        assert!(err.contains("2 launches of 1 kernel accepted, 1 refused"), "{program}: {err}");
        for way in ["thread", "handle", "cooperative", "ex"] {
            let err = watched(&format!("{program} good refused-{way} threads last"), &[OLD]);
            assert_eq!(err.matches("launch refused").count(), 2, "{way}: {err}");
            assert!(err.contains("grid.y is 70000 blocks, the limit"), "{way}: {err}");
            assert!(err.contains("block has 2048 threads"), "{way}: {err}");
            assert!(err.contains("1 launch of 1 kernel accepted, 2 refused"), "{way}: {err}");
        }
    }
}

#[test]
fn what_an_old_runtime_refuses_is_repaired_and_leaves_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let fixed = |words: &str, settings: &[(&str, &str)]| {
        let mut command = with_runtime(words);
        command.envs(settings.iter().copied()).env("LD_PRELOAD", library());
        let ran = run(command.env("GRIDGUARD_RUN_FIX", "1").env("GRIDGUARD_FAKE_LOG", &log));
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        let launches: Vec<_> =
            text.lines().filter(|line| line.starts_with("launch ")).map(str::to_owned).collect();
        (ran.out, ran.err, launches)
    };
    for program in ["runtime", "runtime-linked"] {
        // A launch in clusters is shifted, the others are folded into one.
        for (action, launches) in [("two", 2), ("two-thread", 2), ("two-handle", 2), ("two-ex", 3)]
        {
            let words = format!("{program} {action} last good");
            let expected = format!("{action} 0\nlast 0\ngood 0\n");
            // Each runtime leads to the same launches of the driver.
            let [old, new] = ["2", "1"].map(|checks| {
                let (out, err, log) = fixed(&words, &[(OLD.0, checks)]);
                assert_eq!(out, expected, "{err}");
                assert!(err.contains("1 launch of 1 kernel accepted, 0 refused, 1 fixed"), "{err}");
                log
            });
            assert_eq!(old, new);
            assert_eq!(old.len(), launches, "{old:?}");
            assert!(old.iter().all(|launch| launch.contains(" shared=4096 ")), "{old:?}");
        }
        // What cannot be repaired is explained once, and returns the error of the runtime.
        let words = format!("{program} good two-cooperative last last zero good");
        let (out, err, _) = fixed(&words, &[OLD]);
        assert_eq!(out, "good 0\ntwo-cooperative 9\nlast 9\nlast 0\nzero 9\ngood 0\n", "{err}");
        assert_eq!(err.matches("launch refused").count(), 2, "{err}");
        assert!(err.contains("the blocks of a cooperative launch wait for each other"), "{err}");
        assert!(err.contains("2 launches of 1 kernel accepted, 2 refused"), "{err}");
    }
}

#[test]
fn a_refused_launch_is_not_made_again_to_restore_the_last_error() {
    // The limit that refused the launch is raised at once, and our queries fail.
    let settings = [("GRIDGUARD_FAKE_RUNTIME_REFUSES", "1"), ("GRIDGUARD_FAKE_RUNTIME_NAMES", "0")];
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut command = with_runtime("runtime-linked good last good");
    let ran =
        run(command.envs(settings).env("LD_PRELOAD", library()).env("GRIDGUARD_FAKE_LOG", &log));
    assert_eq!(ran.out, "good 9\nlast 9\ngood 0\n", "{}", ran.err);
    assert_eq!(ran.err.matches("launch refused").count(), 1, "{}", ran.err);
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("launch _Z5touchPfi").count(), 1, "{log}");
}

#[test]
fn a_program_with_an_old_runtime_within_is_named_at_the_end() {
    let words = "runtime-static good refused last";
    let line = "gridguard: runtime-static contains a CUDA runtime before 13. Launches that this runtime refuses are not \
                fixed, and before 12.9 not seen: link it with -cudart shared, or build it with CUDA 13\n";
    for fix in ["0", "1"] {
        let err = watched(words, &[OLD, ("GRIDGUARD_RUN_FIX", fix)]);
        assert_eq!(err, format!("gridguard: 1 launch of 1 kernel accepted, 0 refused\n{line}"));
    }
    // Since CUDA 12.9 a runtime writes to the driver's log.
    let logs = [OLD, ("GRIDGUARD_FAKE_LOGS", "1"), ("GRIDGUARD_RUN_FIX", "1")];
    let err = watched("runtime-static good refused refused zero last good", &logs);
    let expected = "\
gridguard: launch refused: cudaErrorInvalidConfiguration (9), invalid configuration argument
  runtime   Grid Dimensions (1,70000,1) include one or more values that exceed the limit
  fix       not possible: its CUDA runtime is static and before 13, and refuses it: link it with -cudart shared, or \
build it with CUDA 13
gridguard: launch refused: ";
    assert!(without_stack(&err).starts_with(expected), "{err}");
    assert!(
        err.contains("/runtime-static\n") && err.contains("  stack     runtime-static+0x"),
        "{err}"
    );
    assert_eq!(err.matches("launch refused").count(), 2, "{err}");
    assert!(err.contains("2 launches of 2 kernels accepted, 3 refused"), "{err}");
    let mut aborted = with_runtime("runtime-static good refused good");
    aborted.envs(logs).env("GRIDGUARD_RUN_ABORT", "1").env("LD_PRELOAD", library());
    assert_eq!(run(&mut aborted).out, "", "it ended before its output was written");
    // The functions of a shared one are replaced, and quote the sentence.
    let err = watched("runtime-linked good refused", &logs[..2]);
    assert_eq!(err.matches("launch refused").count(), 1, "{err}");
    assert!(err.contains("  driver    Grid Dimensions (1,70000,1) include"), "{err}");
    // A newer one leaves the check to the driver.
    let err = watched(words, &[]);
    assert!(err.contains("1 launch of 1 kernel accepted, 1 refused"), "{err}");
    assert!(!err.contains("contains a CUDA runtime"), "{err}");
    // The functions of a shared one are replaced.
    assert!(!watched("runtime-linked good", &[OLD]).contains("contains a CUDA runtime"));
}

#[test]
fn each_library_reaches_the_runtime_that_it_links() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let plugin = test_program("plugin.so").display().to_string();
    let words = format!(
        "runtime-linked good plugin={plugin} in-good in-zero good close plugin={plugin} in-good"
    );
    let reached = |preload: bool| {
        let mut command = with_runtime(&words);
        if preload {
            command.env("LD_PRELOAD", library());
        }
        let ran = run(command.env("GRIDGUARD_FAKE_LOG", &log));
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        let runtimes: Vec<_> =
            text.lines().filter(|line| line.starts_with("runtime ")).map(str::to_owned).collect();
        (ran.out, ran.status, runtimes)
    };
    let without = reached(false);
    let [own, other] =
        ["13", "12"].map(|version| format!("runtime libcudart.so.{version} cudaLaunchKernel"));
    assert_eq!(without.2, [&own, &other, &other, &own, &other].map(String::as_str));
    assert_eq!(reached(true), without);
}

#[test]
fn another_preloaded_library_sees_each_launch_once_in_either_order() {
    let words = "runtime-linked good zero refused last";
    let alone = run(with_runtime(words).env("LD_PRELOAD", test_program("tracer.so")));
    assert!(alone.out.ends_with("tracer saw 3\n"), "{}", alone.out);
    for order in [[library(), test_program("tracer.so")], [test_program("tracer.so"), library()]] {
        let order = order.map(|path| path.to_str().unwrap().to_owned()).join(":");
        let both = run(with_runtime(words).env("LD_PRELOAD", &order));
        assert_eq!((&both.out, both.status), (&alone.out, alone.status), "{order}: {}", both.err);
        assert_eq!(both.err.matches("launch refused").count(), 2, "{order}: {}", both.err);
    }
}
