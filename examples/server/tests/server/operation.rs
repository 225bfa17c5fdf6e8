//! A server under load, with slow clients, signals and profiles that change.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use gridguard::profile::{Document, Entry, MissLog, Objective, Policy, StoredChoice, publish};
use gridguard::{Guard, catalog};
use gridguard_kernels::temporal_attention::{Layout, Shape, TemporalAttention};
use gridguard_kernels::{ElementType, Operation};
use rustix::process::Signal;

use crate::support::{Server, attention, post, program, read_reply, wait_until};

fn small() -> Vec<u8> {
    attention([1, 1, 2, 4], 1).1
}

/// Whether as many requests are in flight.
fn wait_for(server: &Server, in_flight: f64) {
    wait_until(|| server.metric("gridguard_server_in_flight", "") == in_flight);
}

#[test]
fn load_of_every_type_is_served_without_error_in_closed_and_open_loops() {
    let server = Server::start(&[]);
    for options in [
        &["--dtype", "f16"][..],
        &["--dtype", "bf16"],
        &["--dtype", "f32", "--rate", "500", "--concurrency", "64"],
    ] {
        let mut load = program("gridguard-load", "gridguard-load");
        load.arg(&server.address).args(["--shape", "3x2x4x8", "--requests", "60"]);
        let output = load.args(["--verify-every", "1", "--duration", "1h"]).args(options).output();
        let output = output.expect("it is built");
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(output.status.success(), "{said}");
        assert_eq!((&said["served"], &said["wrong"]), (&said["verified"], &0.into()), "{said}");
    }
    server.stop();
}

#[test]
fn overload_is_refused_and_sigterm_finishes_what_was_accepted() {
    let mut server = Server::start(&["--batch-wait", "1h", "--in-flight", "3"]);
    let accepted = [(); 2].map(|()| server.begin(&post("", &small())));
    // The body of one is still on its way.
    let request = post("", &small());
    let mut half = server.begin(&request[..request.len() - 10]);
    wait_for(&server, 3.0);
    let refused = server.post("", &small());
    assert_eq!((refused.error().0, refused.error().1.as_str()), (503, "overloaded"));
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/ready").status, 200);

    server.signal(Signal::TERM);
    wait_until(|| server.log().contains("shutting down"));
    half.write_all(&request[request.len() - 10..]).expect("sent");
    for stream in accepted.into_iter().chain([half]) {
        assert_eq!(read_reply(stream).status, 200);
    }
    assert!(server.ended().success(), "{}", server.log());
}

#[test]
fn what_is_not_done_in_time_after_sigterm_is_reported() {
    let mut server = Server::start(&["--drain", "0s"]);
    let _half = server.begin(&post("", &[0; 100])[..120]);
    wait_for(&server, 1.0);
    server.signal(Signal::INT);
    assert_eq!(server.ended().code(), Some(1));
    assert!(server.log().contains("the time to shut down passed"), "{}", server.log());
}

#[test]
fn a_request_that_takes_too_long_leaves_its_place() {
    let server = Server::start(&["--batch-wait", "1h", "--in-flight", "1", "--timeout", "100ms"]);
    for _ in 0..3 {
        assert_eq!(server.post("", &small()).error().1, "timed_out");
    }
    server.stop();
}

/// A busy machine may delay any client beyond a short limit, so each limit has a server of its own. With a single
/// connection, a client that keeps it would keep out the next one.
#[test]
fn clients_that_send_or_read_slowly_are_cut_off() {
    let server = Server::start(&["--body-timeout", "100ms"]);
    let half = server.begin(&post("", &small())[..120]);
    assert_eq!(read_reply(half).error().1, "body_timeout");
    let alone = |limit, sent: &[u8]| {
        let server = Server::start(&["--connections", "1", limit, "500ms"]);
        let slow = server.begin(sent);
        assert_eq!(server.get("/health").status, 200);
        drop(slow);
    };
    alone("--header-timeout", b"");
    alone("--header-timeout", b"POST /v1/attention HTTP/1.1\r\nHost");
    // A reply of 10 MiB, more than sockets buffer.
    alone("--write-timeout", &post("", &attention([81_920, 1, 1, 32], 1).1));
}

#[test]
fn a_server_that_cannot_run_says_why() {
    let running = Server::start(&[]);
    for (options, reason) in [
        (&["--host", "--gpu", "abacus"][..], "abacus"),
        (&["--host", "--listen", &running.address], &running.address[..]),
        (&["--devices", "0"], "compute with `--host`"),
    ] {
        // Also where there is a driver.
        let mut command = Command::new(env!("CARGO_BIN_EXE_gridguard-server"));
        let ended = command.args(options).env("CUDA_VISIBLE_DEVICES", "").output();
        let ended = ended.expect("it is built");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), said.contains(reason)), (Some(2), true), "{said}");
    }
}

/// Publishes a profile of the host whose entry launches attention of this shape in chunks.
fn publish_chunks(
    file: &Path,
    guard: &Guard,
    [items, heads, frames, head_dim]: [u64; 4],
    max_items: u64,
) {
    let shape = Shape::new(items, heads, frames, head_dim).expect("legal");
    let attention = TemporalAttention::new(shape, ElementType::F32, guard.limits());
    let attention = attention.expect("served").with_layout(Layout::FoldedY);
    let key = attention.key(guard.limits(), Policy::default(), Objective::default());
    let named = attention.sizes().into_iter().map(|(name, size)| (name.to_owned(), size));
    let mut document = Document::new(guard.identity(), guard.environment());
    let entry = Entry {
        key: key.expect("a key"),
        shape: named.collect(),
        choice: StoredChoice::Chunked { max_items: max_items.try_into().expect("some") },
        launches: items.div_ceil(max_items),
        ..Entry::default()
    };
    document.insert(entry).expect("legal");
    publish(file, &document).expect("written");
}

#[test]
fn profiles_are_loaded_again_and_missing_shapes_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let guard = Guard::host(catalog::gpu("h200").expect("in the catalogue").limits.clone());
    let file = folder.path().join(guard.identity().file_name());
    let misses = folder.path().join("misses.ron");
    let [profiles, misses_name] =
        [folder.path(), &misses].map(|path| path.to_str().expect("UTF-8"));
    let options = ["--profile", profiles, "--misses", misses_name, "--profile-every", "10ms"];
    let server = Server::start(&options);
    let launches = || {
        let reply = server.post("", &attention([6, 1, 4, 8], 1).1);
        reply.headers["gridguard-launches"].clone()
    };
    assert_eq!(launches(), "1");
    wait_until(|| misses.exists());
    let missed = MissLog::read(&misses).expect("valid").expect("written").shapes;
    let sizes: Vec<u64> = missed[0].shape.iter().map(|(_, size)| *size).collect();
    assert_eq!(sizes, [6, 1, 4, 8]);

    publish_chunks(&file, &guard, [6, 1, 4, 8], 2);
    wait_until(|| launches() == "3");
    // A file that does not parse leaves the old choices in use.
    let failed = || server.metric("gridguard_server_profile_reloads_total", "\"failed\"");
    std::fs::write(&file, "(schema: 1, device: nonsense").expect("written");
    wait_until(|| failed() == 1.0);
    assert_eq!(launches(), "3");
    std::fs::remove_file(&file).expect("removed");
    publish_chunks(&file, &guard, [6, 1, 4, 8], 3);
    wait_until(|| launches() == "2");
    assert_eq!(server.metric("gridguard_server_profile_info", "digest="), 1.0);
    server.stop();
}
