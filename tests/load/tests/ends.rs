//! How the load generator ends where no server helps it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::net::TcpListener;
use std::process::{Command, Output};

fn load(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gridguard-load"));
    let Output { status, stdout, stderr } = command.args(arguments).output().expect("it is built");
    (status.code(), String::from_utf8([stdout, stderr].concat()).expect("UTF-8"))
}

#[test]
fn requests_that_nobody_answers_are_failures() {
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let server = format!("http://{}", address.expect("a free port"));
    let (status, said) = load(&[&server, "--requests", "3", "--shape", "1x1x2x4"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("served   0") && said.contains("failed   3: client error"), "{said}");
}

#[test]
fn what_cannot_be_sent_is_an_error() {
    for (arguments, reason) in [
        (&["http://127.0.0.1:1", "--shape", "1x2"][..], "expected four sizes"),
        (&["http://127.0.0.1:1", "--rate", "0"], "expected 0.001 to 1000000"),
        (&["http://localhost:1", "--attack", "idle"], "needs the address of the server"),
    ] {
        let (status, said) = load(arguments);
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}
