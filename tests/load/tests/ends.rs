//! How the load generator ends where no server helps it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::process::Command;

#[test]
fn requests_without_a_reply_are_failures_and_wrong_options_are_errors() {
    for (option, value, status, reason) in [
        // A port that another program cannot take, unlike one that was free a moment ago.
        ("--shape", "1x1x2x4", 1, "error: nothing was served"),
        ("--shape", "1x2", 2, "expected four sizes"),
        ("--rate", "0", 2, "expected 0.001 to 1000000"),
    ] {
        let mut load = Command::new(env!("CARGO_BIN_EXE_gridguard-load"));
        let output = load.args(["127.0.0.1:1", "--requests", "3", option, value]).output();
        let output = output.expect("it is built");
        let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("UTF-8");
        assert!(output.status.code() == Some(status) && said.contains(reason), "{said}");
    }
}
