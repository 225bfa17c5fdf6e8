//! Tests that run in a child process.

use std::process::Output;

/// Asserts that the child process that ran the test `test` passed.
///
/// # Panics
///
/// If the test failed, with everything that the process printed.
pub fn assert_passed(test: &str, output: &Output) {
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // A name that matches no test would pass without running anything.
    assert!(
        output.status.success() && printed.contains("test result: ok. 1 passed"),
        "{test} failed in its child process ({}):\n{printed}\n{errors}",
        output.status
    );
}
