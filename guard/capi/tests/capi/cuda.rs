//! C programs that launch, on the fake driver.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use gridguard_test_support::fake_driver::{Driver, launches, races, with_driver, with_fake};

use crate::build::{Program, library};

/// Makes glibc overwrite freed memory, so that a later use shows.
const OVERWRITE_FREED: [(&str, &str); 1] = [("MALLOC_PERTURB_", "165")];

const C99: (&str, &[&str]) = ("gcc", &["-std=c99"]);
const SANITIZED: (&str, &[&str]) =
    ("gcc", &["-std=c99", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
const CPP11: (&str, &[&str]) = ("g++", &["-x", "c++", "-std=c++11"]);

/// The driver of this process, which the programs link.
pub(crate) fn driver() -> PathBuf {
    let path = std::env::var_os("LD_LIBRARY_PATH").expect("the fake driver's folder");
    let folder = std::env::split_paths(&path).next().expect("a folder");
    folder.join("libcuda.so.1")
}

fn launch_with((compiler, options): (&str, &[&str]), driver_is: &str) {
    let libraries = [library(), driver()];
    Program::linked(compiler, options, "c/cuda.c", &libraries).run(&[driver_is], &[]);
}

#[test]
fn programs_launch_through_a_guard() {
    with_fake(&[], || {
        launch_with(C99, "new");
        let launched = launches();
        assert!(launched[0].contains("fake_iota_y grid=1,38400,1 block=128,1,1"), "{launched:?}");
        let passed = |line: &&String| line.contains("args=1122334455667788,aabbccdd,");
        assert_eq!(launched.iter().filter(passed).count(), 1, "{launched:?}");
        assert_eq!(races(), Vec::<String>::new());
    });
}

#[test]
fn launches_with_sanitizers_find_no_defect() {
    with_fake(&[], || launch_with(SANITIZED, "new"));
}

#[test]
fn the_same_launches_are_cpp() {
    with_fake(&[], || launch_with(CPP11, "new"));
}

#[test]
fn callbacks_may_free_launch_and_change_what_the_call_uses() {
    with_fake(&[], || {
        for (compiler, options) in [C99, SANITIZED, CPP11] {
            let libraries = [library(), driver()];
            let program = Program::linked(compiler, options, "c/callbacks.c", &libraries);
            program.run(&[], &OVERWRITE_FREED);
        }
    });
}

#[test]
fn an_exception_that_leaves_a_callback_ends_the_process() {
    with_fake(&[], || {
        let libraries = [library(), driver()];
        let program = Program::linked("g++", &["-std=c++17"], "cpp/throwing.cpp", &libraries);
        let output = program.output(&[], &[]);
        let aborted = output.status.signal() == Some(SIGABRT);
        assert!(aborted && output.stdout.is_empty(), "{output:?}");
    });
}

/// What `abort` raises.
const SIGABRT: i32 = 6;

#[test]
fn an_old_driver_needs_the_sizes_of_parameters() {
    with_driver(Driver::Old, &[], || {
        let libraries = [library(), driver()];
        let (compiler, options) = C99;
        let options = [options, &["-DOLD_DRIVER"]].concat();
        Program::linked(compiler, &options, "c/cuda.c", &libraries).run(&["old"], &[]);
    });
}

#[test]
fn without_a_driver_every_call_says_so() {
    with_driver(Driver::Missing, &[], || {
        let (compiler, options) = SANITIZED;
        Program::linked(compiler, options, "c/no_driver.c", &[library()]).run(&[], &[]);
    });
}
