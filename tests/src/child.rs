//! Tests that run in processes of their own.

use std::process::Output;

/// What a process that ran the one test `test` has left.
///
/// # Panics
///
/// Where that test did not pass, with all that the process printed.
pub fn assert_passed(test: &str, output: &Output) {
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // A name that matches no test would pass with nothing run.
    assert!(
        output.status.success() && printed.contains("test result: ok. 1 passed"),
        "{test} failed in its own process ({}):\n{printed}\n{errors}",
        output.status
    );
}
