//! Hostile clients: ordinary requests are served beside them, and their resources are bounded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::support::{Server, attention, body, load, post, random, read_reply, text, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// Sends ordinary requests beside an attack, checks that each is served, and returns the load generator's report. Sends
/// them again at half the rate, until `ends` connections of the attack end meanwhile, however slow the machine is.
fn attacked(server: &Server, attack: &str, attackers: &str, requests: &str, ends: u64) -> Value {
    let mut rate = 20.0;
    loop {
        let at_rate = rate.to_string();
        let ordinary = ["--shape", "1x1x2x4", "--requests", requests];
        let limits = ["--rate", &at_rate, "--concurrency", "1000"];
        let attack = ["--attack", attack, "--attackers", attackers, "--format", "json"];
        let loaded = load(server, &[&ordinary[..], &limits, &attack].concat());
        assert!(loaded.status.success(), "{}", text(&loaded));
        let said: Value = serde_json::from_slice(&loaded.stdout).expect("JSON");
        let served = serde_json::json!({ "200": requests.parse::<u64>().expect("a number") });
        assert_eq!(said["statuses"], served, "{said}");
        assert_eq!(server.get("/healthz").status, 200);
        if said["attack"]["connections"].as_u64().expect("a number") >= ends {
            return said;
        }
        rate /= 2.0;
    }
}

/// How the connections of the attack ended: each with one of these.
fn assert_ends(said: &Value, expected: &[&str]) {
    let ends = said["attack"]["ends"].as_object().expect("ends");
    assert!(!ends.is_empty(), "{said}");
    assert!(ends.keys().all(|end| expected.contains(&end.as_str())), "{said}");
}

/// What is taken of the limits comes back.
fn assert_idle(server: &Server) {
    for gauge in ["queued", "in_flight", "body_bytes", "reply_bytes", "work_seconds"] {
        wait_until(|| server.metric(&format!("gridguard_server_{gauge}"), "") == 0.0);
    }
}

/// A body of attention whose time is quadratic in its frames.
fn quadratic(items: usize) -> Vec<u8> {
    attention(&[items, 1024, 1], 1).1
}

/// Sends a request, and returns its connection once a device has it.
fn computing(server: &Server, path: &str, body: &[u8]) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(&post(path, body)).expect("sent");
    wait_until(|| server.metric("gridguard_server_accepted_total", "") >= 1.0);
    wait_until(|| server.metric("gridguard_server_queued", "") == 0.0);
    stream
}

#[test]
fn a_hot_shape_does_not_starve_another_one() {
    // The attackers have a full batch ready at all times.
    let server = Server::start(&["--batch-bytes", "1MiB"]);
    let said = attacked(&server, "hot-shape", "16", "30", 16);
    assert_ends(&said, &["200"]);
    server.stop();
}

#[test]
fn masks_leave_no_memory_behind() {
    // Each request is a full batch, so that there is always one.
    let server = Server::start(&["--max-bodies", "64MiB", "--batch-bytes", "1MiB"]);
    attacked(&server, "masks", "4", "30", 1);
    let before = server.resident();
    let mut served = 0;
    // Each body has 768 KiB.
    while served < 80 {
        let said = attacked(&server, "masks", "4", "40", 1);
        served += said["attack"]["ends"]["200"].as_u64().expect("some are served");
    }
    assert_idle(&server);
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more after {served} masks");
    server.stop();
}

#[test]
fn a_header_of_a_million_tensors_is_refused_before_it_is_read_or_parsed() {
    let server = Server::start(&[]);
    let before = server.resident();
    let said = attacked(&server, "header", "4", "30", 1);
    assert_ends(&said, &["413"]);
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 128 << 20, "{grown} bytes more");

    // As a message says it; a header that is just short enough is parsed.
    let of = |length: u64| {
        let header = [&b"{}"[..], &vec![b' '; usize::try_from(length).unwrap() - 2]].concat();
        server.post("/v1/attention", &[&length.to_le_bytes()[..], &header].concat())
    };
    let reply = of((64 << 10) + 1);
    assert_eq!(reply.error(), (413, "header_too_large".to_owned()));
    assert_eq!(reply.json()["error"]["header_bytes"], (64 << 10) + 1);
    assert_eq!(of(64 << 10).error(), (422, "missing_tensor".to_owned()));
    server.stop();
}

#[test]
fn work_that_takes_too_long_is_refused_with_the_estimate() {
    let server = Server::start(&["--max-work", "10ms"]);
    let said = attacked(&server, "quadratic", "2", "30", 1);
    assert_ends(&said, &["422"]);
    let reply = server.post("/v1/attention", &quadratic(400));
    assert_eq!(reply.error(), (422, "too_much_work".to_owned()));
    let error = reply.json()["error"].clone();
    assert_eq!(error["limit_ms"], 10);
    assert!(error["estimate_ms"].as_u64().expect("a number") > 10, "{error}");
    assert!(server.metric("gridguard_server_operations_per_second", "") > 0.0);
    assert_idle(&server);
    server.stop();
}

#[test]
fn accepted_work_is_bounded_and_a_client_leaves_some_for_others() {
    // Two of these requests are more than a client's half.
    let server =
        Server::start(&["--batch-wait", "1h", "--max-work", "100d", "--queue-work", "300d"]);
    let size = quadratic(64);
    let stream = {
        let mut stream = server.connect();
        stream.write_all(&post("/v1/attention", &size)).expect("sent");
        wait_until(|| server.metric("gridguard_server_queued", "") == 1.0);
        stream
    };
    let estimate = server.metric("gridguard_server_work_seconds", "");
    assert!(estimate > 0.0);
    drop(stream);
    wait_until(|| server.metric("gridguard_server_work_seconds", "") == 0.0);
    server.stop();

    let limit = format!("{}us", (estimate * 3e6).ceil());
    let options = ["--batch-wait", "1h", "--max-work", "100d", "--queue-work", &limit];
    let server = Server::start(&options);
    let mut accepted = Vec::new();
    let refused = loop {
        let mut stream = server.connect();
        stream.write_all(&post("/v1/attention", &size)).expect("sent");
        let before = u32::try_from(accepted.len()).expect("few");
        let has_one_more = || server.metric("gridguard_server_queued", "") > f64::from(before);
        let is_refused =
            || server.metric("gridguard_server_requests_total", "status=\"429\"") == 1.0;
        wait_until(|| has_one_more() || is_refused());
        if is_refused() {
            break read_reply(stream);
        }
        accepted.push(stream);
        // Two servers measure this machine differently, but never by so much.
        assert!(accepted.len() < 100);
    };
    assert_eq!(refused.error(), (429, "work_full".to_owned()));
    assert_eq!(refused.headers["retry-after"], "1");
    drop(accepted);
    assert_idle(&server);
    server.stop();
}

#[test]
fn a_batch_whose_client_left_stops_between_chunks() {
    let server = Server::start(&["--max-work", "100d", "--queue-work", "300d"]);
    // It would take minutes.
    let stream = computing(&server, "/v1/attention", &quadratic(5000));
    drop(stream);
    wait_until(|| server.metric("gridguard_server_batches_cancelled_total", "") == 1.0);
    assert_idle(&server);
    assert_eq!(server.post("/v1/attention", &attention(&[1, 2, 4], 1).1).status, 200);
    server.stop();

    let more = ["--channels", "64", "--dtype", "f32", "--memory", "4GiB"];
    let server =
        Server::start(&[&["--max-work", "100d", "--queue-work", "300d"][..], &more].concat());
    let x = random(64 * 1024 * 64, 1);
    let stream = computing(&server, "/v1/block", &body(&[("x", &[64, 1024, 64], &x)]));
    drop(stream);
    wait_until(|| server.metric("gridguard_server_batches_cancelled_total", "block") == 1.0);
    server.stop();
}

#[test]
fn clients_that_leave_take_no_places_from_those_that_stay() {
    let server = Server::start(&["--queue-work", "300d"]);
    let said = attacked(&server, "leavers", "16", "40", 1);
    assert_ends(&said, &["left"]);
    assert_idle(&server);
    let [accepted, answered, abandoned] = ["accepted", "answered", "abandoned"]
        .map(|name| server.metric(&format!("gridguard_server_{name}_total"), ""));
    assert_eq!(accepted, answered + abandoned);
    server.stop();
}

#[test]
fn the_server_ends_in_time_whatever_its_worker_computes() {
    let options = ["--max-work", "100d", "--queue-work", "300d", "--drain", "100ms"];
    let block = ["--channels", "640", "--dtype", "f32"];
    let x = random(1024 * 640, 1);
    // A single chunk of the block takes much longer than the server may, even if nobody waits for it.
    let chunk = body(&[("x", &[1, 1024, 640], &x)]);
    let (late, still) = ("the time to shut down passed", "a worker still computes");
    for (path, body, stays, ends) in [
        ("/v1/attention", &quadratic(5000), true, &[late][..]),
        ("/v1/attention", &quadratic(5000), false, &["all clients left", still]),
        ("/v1/block", &chunk, false, &[still]),
    ] {
        let mut server = Server::start(&[&options[..], &block].concat());
        let stream = computing(&server, path, body);
        let stream = Some(stream).filter(|_| stays);
        if !stays {
            wait_until(|| server.metric("gridguard_server_in_flight", "") == 0.0);
        }
        server.signal(Signal::TERM);
        let status = server.ended();
        let log = server.log();
        assert_eq!(status.code(), Some(if stays { 1 } else { 0 }), "{path}: {log}");
        assert!(ends.iter().any(|end| log.contains(end)), "{path}: {log}");
        drop(stream);
    }
}

#[test]
fn a_slow_reader_keeps_its_reply_and_nothing_else_and_not_for_long() {
    // A reply of 16 MiB for a body of 48 MiB.
    let (_, large) = attention(&[1 << 17, 1, 32], 1);
    let trickle = |mut stream: TcpStream| {
        let mut part = [0; 16 << 10];
        while stream.read(&mut part).is_ok_and(|bytes| bytes > 0) {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let options = ["--least-rate", "32MiB", "--write-timeout", "2s", "--max-work", "100d"];
    let server = Server::start(&[&options[..], &["--queue-work", "300d"]].concat());
    let mut stream = server.connect();
    stream.write_all(&post("/v1/attention", &large)).expect("sent");
    trickle(stream);
    assert_eq!(server.metric("gridguard_server_late_readers_total", ""), 1.0);
    assert_idle(&server);
    server.stop();

    // Meanwhile other bodies use its memory. A second slow reader gets the same.
    let options = ["--max-bodies", "100MiB", "--max-replies", "100MiB", "--max-work", "100d"];
    let server = Server::start(&[&options[..], &["--queue-work", "300d"]].concat());
    let unread: Vec<TcpStream> = (1..=2)
        .map(|number| {
            let mut stream = server.connect();
            stream.write_all(&post("/v1/attention", &large)).expect("sent");
            let answered = || server.metric("gridguard_server_answered_total", "");
            wait_until(|| answered() == f64::from(number));
            stream
        })
        .collect();
    assert_eq!(server.metric("gridguard_server_body_bytes", ""), 0.0);
    assert_eq!(server.metric("gridguard_server_reply_bytes", ""), f64::from(32 << 20));
    assert_eq!(server.metric("gridguard_server_work_seconds", ""), 0.0);
    // A client gets half of the memory that others leave.
    let mut third = server.connect();
    third.write_all(&post("/v1/attention", &large)).expect("sent");
    wait_until(|| server.metric("gridguard_server_answered_total", "") == 3.0);
    let mut fourth = server.connect();
    fourth.write_all(&post("/v1/attention", &large)).expect("sent");
    assert_eq!(read_reply(fourth).error(), (429, "replies_full".to_owned()));
    drop((unread, third));
    assert_idle(&server);
    server.stop();
}

#[test]
fn slow_readers_do_not_keep_others_out() {
    let server = Server::start(&["--max-bodies", "128MiB"]);
    attacked(&server, "slow-readers", "4", "60", 0);
    // The attackers are gone in the middle of their replies.
    assert_idle(&server);
    server.stop();
}

#[test]
fn idle_connections_keep_neither_clients_nor_operators_out() {
    // The attackers get 40 of them, and the client 20: one for each request, so that none waits for another.
    let server = Server::start(&["--connections", "80"]);
    let said = attacked(&server, "idle", "96", "20", 1);
    // Those that were too many are closed at once, with a reply.
    assert!(said["attack"]["ends"]["429"].as_u64().expect("refused ones") > 0, "{said}");
    // The client of this test has its full share, and operators are still served.
    let idle: Vec<TcpStream> = (0..80).map(|_| server.connect()).collect();
    wait_until(|| server.metric("gridguard_server_connections_refused_total", "") > 0.0);
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.get("/readyz").status, 200);
    drop(idle);
    server.stop();
}

#[test]
fn bodies_that_are_cut_or_wrong_about_their_length_or_endless_cost_nothing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gridguard-server"));
    command.args(["--body-timeout", "1s", "--max-body", "4MiB", "--max-bodies", "64MiB"]);
    // The allocator gives memory back at once, so that resident memory is memory in use.
    command.env("MIMALLOC_PURGE_DELAY", "0");
    let server = Server::spawn(&mut command);
    wait_until(|| server.get("/readyz").status == 200);
    for (attack, ends) in [
        ("cut", &["left"][..]),
        ("too-short", &["400"]),
        ("too-long", &["408"]),
        // Under load a body may exceed its time before its size.
        ("endless", &["413", "413 then connection reset", "408"]),
    ] {
        let before = server.resident();
        let said = attacked(&server, attack, "8", "40", 1);
        let is_reset = |end: &String| end == "connection reset" && attack == "endless";
        let ends_seen = said["attack"]["ends"].as_object().expect("ends");
        assert!(!ends_seen.is_empty(), "{said}");
        assert!(
            ends_seen.keys().all(|end| ends.contains(&end.as_str()) || is_reset(end)),
            "{said}"
        );
        assert_idle(&server);
        let grown = server.resident().saturating_sub(before);
        // Gigabytes are sent.
        assert!(grown < 256 << 20, "{attack}: {grown} bytes more");
    }
    server.stop();
}

#[test]
fn an_address_that_others_can_reach_is_a_warning() {
    let warned = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gridguard-server"));
        let spawned = command.args(options).args(["--devices", "host"]);
        let mut child = spawned.stderr(std::process::Stdio::piped()).spawn().expect("it is built");
        let mut log = String::new();
        let mut stderr = child.stderr.take().expect("piped");
        // The last of these lines comes when the worker is ready.
        while !log.contains("\"ready\"") {
            let mut byte = [0; 1024];
            let bytes = stderr.read(&mut byte).expect("a log");
            assert!(bytes > 0, "{log}");
            log.push_str(&String::from_utf8_lossy(&byte[..bytes]));
        }
        child.kill().expect("it runs");
        child.wait().expect("a child");
        log.contains("there is no authentication")
    };
    let local = "127.0.0.1:0";
    assert!(!warned(&["--listen", local, "--admin", local]));
    assert!(warned(&["--listen", "0.0.0.0:0", "--admin", local]));
    assert!(warned(&["--listen", local, "--admin", "0.0.0.0:0"]));
}
