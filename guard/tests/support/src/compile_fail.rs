//! Programs that must not compile, with the compiler's messages.

use std::process::Command;

/// The compiler whose messages are on file.
const COMPILER: &str = "rustc 1.95.";

/// Asserts that the programs of `pattern` do not compile, with exactly the messages beside them.
/// Other compilers word these otherwise, so the test passes with them unseen.
///
/// # Panics
///
/// If one compiles, or with other messages.
pub fn do_not_compile(pattern: &str) {
    let output = Command::new("rustc").arg("--version").output().expect("rustc runs");
    if output.stdout.starts_with(COMPILER.as_bytes()) {
        trybuild::TestCases::new().compile_fail(pattern);
    } else {
        println!("skipped: the expected messages come from {COMPILER}*");
    }
}
