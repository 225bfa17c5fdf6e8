//! C programs that tune their own functions, on the host and on the fake driver.

use std::os::unix::process::ExitStatusExt;

use gridguard_test_support::fake_driver::{Driver, races, with_driver};

use crate::build::{Program, library};
use crate::cuda::{C99, CPP11, SANITIZED, SIGABRT, driver};

/// The delay kernel of the clock has a pointer and a word.
const DELAY: (&str, &str) = ("GRIDGUARD_FAKE_NVRTC_CUBIN", "8,8");

fn tune_with((compiler, options): (&str, &[&str]), argument: &str) {
    let libraries = [library(), driver()];
    Program::linked(compiler, options, "c/tune.c", &libraries).run(&[argument], &[]);
}

#[test]
fn programs_tune_their_functions() {
    with_driver(Driver::WithCompiler, &[DELAY], || {
        for language in [C99, SANITIZED, CPP11] {
            let folder = tempfile::tempdir().expect("a folder");
            tune_with(language, folder.path().to_str().expect("UTF-8"));
        }
        assert_eq!(races(), Vec::<String>::new());
    });
}

#[test]
fn a_launch_that_breaks_the_context_ends_the_tuning() {
    // Some checks and samples run before.
    let faulty = ("GRIDGUARD_FAKE_FAULT_LAUNCH", "20");
    with_driver(Driver::WithCompiler, &[DELAY, faulty], || tune_with(SANITIZED, "broken"));
}

#[test]
fn an_exception_that_leaves_a_callback_ends_the_process() {
    with_driver(Driver::Whole, &[], || {
        let (options, libraries) = (["-std=c++17", "-DTUNE"], [library(), driver()]);
        let output =
            Program::linked("g++", &options, "cpp/throwing.cpp", &libraries).output(&[], &[]);
        let aborted = output.status.signal() == Some(SIGABRT);
        assert!(aborted && output.stdout.is_empty(), "{output:?}");
    });
}
