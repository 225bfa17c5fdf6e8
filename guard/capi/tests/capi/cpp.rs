//! The C++ wrapper, and GG_LAUNCH with a fake CUDA runtime.

use gridguard_test_support::fake_driver::{Driver, launches, with_driver, with_fake};

use crate::build::{PACKAGE, Program, library};
use crate::cuda::driver;

/// With each compiler's options, one of them with sanitizers.
const OPTIONS: [&[&str]; 2] =
    [&["-std=c++17"], &["-std=c++20", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]];

#[test]
fn the_wrapper_returns_values_or_errors() {
    with_driver(Driver::Missing, &[], || {
        for options in OPTIONS {
            Program::linked("g++", options, "cpp/wrapper.cpp", &[library()]).run(&[], &[]);
        }
    });
}

#[test]
fn an_older_standard_is_named() {
    let include = format!("-I{PACKAGE}/include");
    let source = format!("{PACKAGE}/tests/cpp/wrapper.cpp");
    let mut compiler = std::process::Command::new("g++");
    let output =
        compiler.args(["-std=c++14", "-fsyntax-only", &include, &source]).output().expect("g++");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("gridguard.hpp needs C++17"), "{said}");
}

#[test]
fn one_macro_validates_and_launches() {
    with_fake(&[], || {
        let runtime = format!("-I{PACKAGE}/tests/cpp");
        for options in OPTIONS {
            let options = [options, &[&runtime]].concat();
            let libraries = [library(), driver()];
            Program::linked("g++", &options, "cpp/launch.cpp", &libraries).run(&[], &[]);
        }
        // A structure of 16 bytes, the character, and the integer 3 as a float.
        let launched = launches();
        let passed = |line: &&String| line.starts_with("idle") && line.contains(",61,40400000");
        assert_eq!(launched.iter().filter(passed).count(), OPTIONS.len(), "{launched:?}");
    });
}
