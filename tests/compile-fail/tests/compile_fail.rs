//! Programs that bypass validation, or pass foreign device code as an operation, do not compile.
#![allow(clippy::expect_used, reason = "tests")]

use std::process::Command;

/// The compiler whose messages are on file. Others word them otherwise.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn no_program_bypasses_validation() {
    let output = Command::new("rustc").arg("--version").output().expect("rustc runs");
    if output.stdout.starts_with(COMPILER.as_bytes()) {
        trybuild::TestCases::new().compile_fail("programs/*.rs");
    } else {
        println!("skipped: the expected messages come from {COMPILER}*");
    }
}
