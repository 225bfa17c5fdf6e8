//! How the load generator ends where no server helps it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};

fn load(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gridguard-load"));
    let Output { status, stdout, stderr } = command.args(arguments).output().expect("it is built");
    (status.code(), String::from_utf8([stdout, stderr].concat()).expect("UTF-8"))
}

#[test]
fn requests_that_nobody_answers_are_failures() {
    // A port that another program cannot take, unlike one that was free a moment ago.
    let (status, said) = load(&["http://127.0.0.1:1", "--requests", "3", "--shape", "1x1x2x4"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("served   0") && said.contains("failed   3: client error"), "{said}");
}

/// Reads a whole request.
fn read_request(stream: &mut TcpStream) {
    let (mut read, mut part) = (Vec::new(), [0; 1 << 12]);
    let length = loop {
        let bytes = stream.read(&mut part).expect("a request");
        assert!(bytes > 0, "no request comes");
        read.extend_from_slice(&part[..bytes]);
        let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        break length.and_then(|text| text.parse().ok()).map(|length: usize| end + 4 + length);
    };
    let left = length.expect("a length").saturating_sub(read.len());
    stream.take(left.try_into().expect("short")).read_to_end(&mut read).expect("its body");
}

#[test]
fn a_request_is_sent_again_only_if_the_server_closed_a_kept_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("http://{}", listener.local_addr().expect("an address"));
    let served = std::thread::spawn(move || {
        // How many requests each connection serves, before it reads one and ends.
        for serves in [1, 2, 0] {
            let (mut stream, _) = listener.accept().expect("a connection");
            for _ in 0..serves {
                read_request(&mut stream);
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("sent");
            }
            read_request(&mut stream);
        }
    });
    let one_by_one = ["--concurrency", "1", "--shape", "1x1x2x4", "--verify-every", "0"];
    let (status, said) = load(&[&[&server, "--requests", "4"], &one_by_one[..]].concat());
    served.join().expect("each connection came");
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("status   200: 3") && said.contains("failed   1: client error"),
        "{said}"
    );
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
