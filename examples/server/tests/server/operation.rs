//! A server under load, with signals, slow clients and profiles that change.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::support::{Server, attention, load, post, read_reply, text, wait_until};
use gridguard::profile::{
    Document, Entry, Layers, MissLog, Objective, Policy, Provenance, StoredChoice, Summary, publish,
};
use gridguard::{Guard, catalog};
use gridguard_kernels::temporal_attention::Shape;
use gridguard_kernels::{ElementType, Operation};
use gridguard_server::backend;
use rustix::process::Signal;

/// Sends a request without waiting for its reply.
fn begin(server: &Server, body: &[u8]) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(&post("/v1/attention", body)).expect("sent");
    stream
}

#[test]
fn load_is_served_without_error_in_closed_and_open_loops() {
    let server = Server::start(&["--channels", "16"]);
    let small = ["--shape", "3x2x4x8", "--verify-every", "1", "--channels", "16"];
    let requests = ["--requests", "60"];
    for more in [
        &["--dtype", "f16"][..],
        &["--dtype", "bf16"],
        &["--dtype", "f32"],
        &["--resource", "block"],
        &["--rate", "2000", "--concurrency", "1000"],
    ] {
        let loaded = load(&server, &[&small[..], &requests, more].concat());
        let said = text(&loaded);
        assert!(loaded.status.success(), "{more:?}: {said}");
        assert!(said.contains("status   200: 60"), "{said}");
        assert!(said.contains("verified 60 replies, 0 wrong"), "{said}");
    }
    assert_eq!(server.metric("gridguard_server_requests_total", "status=\"200\""), 300.0);
    assert_eq!(server.metric("gridguard_server_answered_total", ""), 300.0);
    // Weights of another seed are found out.
    let wrong = [&small[..], &["--requests", "1", "--resource", "block", "--seed", "2"]].concat();
    let loaded = load(&server, &wrong);
    assert_eq!(loaded.status.code(), Some(1), "{}", text(&loaded));
    server.stop();
}

#[test]
fn overload_is_429_with_retry_after_and_no_accepted_request_is_lost() {
    let server = Server::start(&["--batch-wait", "1h", "--queue", "8"]);
    let (_, body) = attention(&[1, 2, 4], 1);
    let accepted: Vec<_> = (0..4).map(|_| begin(&server, &body)).collect();
    wait_until(|| server.metric("gridguard_server_queued", "") == 4.0);
    for _ in 0..10 {
        let reply = server.post("/v1/attention", &body);
        assert_eq!(reply.error(), (429, "queue_full".to_owned()));
        assert_eq!(reply.headers["retry-after"], "1");
    }
    // Its own requests are all refused as well, which the load generator reports.
    let loaded = load(&server, &["--requests", "5", "--shape", "1x1x2x4"]);
    assert_eq!(loaded.status.code(), Some(1));
    assert!(text(&loaded).contains("status   429: 5"), "{}", text(&loaded));
    server.stop();
    for stream in accepted {
        assert_eq!(read_reply(stream).status, 200);
    }
}

#[test]
fn sigterm_under_load_finishes_what_was_accepted_and_refuses_what_comes() {
    let mut server = Server::start(&["--batch-wait", "1h"]);
    let (_, body) = attention(&[1, 2, 4], 1);
    let queued: Vec<_> = (0..8).map(|_| begin(&server, &body)).collect();
    wait_until(|| server.metric("gridguard_server_queued", "") == 8.0);
    // One whose body is still on its way keeps the server from ending.
    let request = post("/v1/attention", &body);
    let mut half = server.connect();
    half.write_all(&request[..request.len() - 10]).unwrap();
    wait_until(|| server.metric("gridguard_server_in_flight", "") == 9.0);

    server.signal(Signal::TERM);
    for stream in queued {
        let reply = read_reply(stream);
        assert_eq!((reply.status, reply.headers["connection"].as_str()), (200, "close"));
    }
    assert_eq!(server.get("/readyz").status, 503);
    assert_eq!(server.get("/healthz").status, 200);
    let refused = server.post("/v1/attention", &body);
    assert_eq!(refused.error(), (503, "shutting_down".to_owned()));
    assert_eq!(refused.headers["connection"], "close");

    half.write_all(&request[request.len() - 10..]).unwrap();
    assert_eq!(read_reply(half).status, 200);
    assert!(server.ended().success(), "{}", server.log());
}

#[test]
fn what_is_not_done_in_time_after_sigterm_is_reported() {
    let mut server = Server::start(&["--drain", "0s"]);
    let mut half = server.connect();
    half.write_all(&post("/v1/attention", &[0; 100])[..120]).unwrap();
    wait_until(|| server.metric("gridguard_server_in_flight", "") == 1.0);
    server.signal(Signal::INT);
    assert_eq!(server.ended().code(), Some(1));
    assert!(server.log().contains("the time to shut down passed"), "{}", server.log());
}

/// A busy machine may delay any client beyond a short limit. Each limit therefore has its own server, and only slow
/// clients connect to it.
#[test]
fn clients_that_send_or_read_slowly_are_cut_off() {
    // A reply of 16 MiB that nobody reads, more than sockets buffer: its memory is given back.
    let server =
        Server::start(&["--write-timeout", "100ms", "--max-work", "100d", "--queue-work", "300d"]);
    let (_, large) = attention(&[1 << 17, 1, 32], 1);
    let unread = begin(&server, &large);
    wait_until(|| server.metric("gridguard_server_answered_total", "") == 1.0);
    wait_until(|| server.metric("gridguard_server_reply_bytes", "") == 0.0);
    wait_until(|| server.metric("gridguard_server_in_flight", "") == 0.0);
    drop(unread);
    server.stop();

    // A body that does not come.
    let server = Server::start(&["--body-timeout", "100ms"]);
    let (_, body) = attention(&[1, 2, 4], 1);
    let mut stream = server.connect();
    stream.write_all(&post("/v1/attention", &body)[..120]).unwrap();
    assert_eq!(read_reply(stream).error(), (408, "body_timeout".to_owned()));
    wait_until(|| server.metric("gridguard_server_in_flight", "") == 0.0);
    server.stop();

    // Headers that do not end, and a connection that is kept open without a request.
    let mut command = Command::new(env!("CARGO_BIN_EXE_gridguard-server"));
    let server = Server::spawn(command.args(["--header-timeout", "100ms"]));
    for sent in ["POST /v1/attention HTTP/1.1\r\nHost", "GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n", ""] {
        let mut stream = server.connect();
        // It may be cut off before that.
        let _ = stream.write_all(sent.as_bytes());
        let ended = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        let timed_out = [Err(ErrorKind::WouldBlock), Err(ErrorKind::TimedOut)];
        assert!(!timed_out.contains(&ended), "{sent:?}: {ended:?}");
    }
    server.stop();
}

#[test]
fn missing_devices_are_named_once_and_with_a_remedy() {
    for devices in ["0", "1,0", "all"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gridguard-server"));
        command.args(["--devices", devices, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        // Also where there is a driver.
        let ended = command.env("CUDA_VISIBLE_DEVICES", "").output().expect("the server is built");
        let log = String::from_utf8(ended.stderr).expect("text");
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(2), 0), "{log}");
        // An event, and a line for people.
        let lines: Vec<_> = log.lines().collect();
        assert!(lines.len() == 2 && lines.iter().all(|it| it.contains("--devices host")), "{log}");
    }
}

#[test]
fn the_host_takes_the_limits_of_a_compute_capability() {
    let server = Server::start(&["--gpu", "9.0"]);
    let workers = server.get("/healthz").json()["workers"].to_string();
    assert!(workers.contains("under the limits of any sm_90"), "{workers}");
    server.stop();
}

#[test]
fn thousands_of_requests_leave_no_memory_behind() {
    let server = Server::start(&["--batch-wait", "0s"]);
    // 96 KiB each.
    let options = ["--shape", "512x1x1x32", "--verify-every", "0", "--concurrency", "4"];
    let send = |requests: &str| {
        let loaded = load(&server, &[&options[..], &["--requests", requests]].concat());
        assert!(loaded.status.success(), "{}", text(&loaded));
    };
    send("200");
    let before = server.resident();
    send("1000");
    let grown = server.resident().saturating_sub(before);
    // A leak of the bodies alone would be 96 MB.
    assert!(grown < 48 << 20, "{grown} bytes more than before 1000 requests");
    for gauge in ["queued", "in_flight", "body_bytes", "reply_bytes", "work_seconds"] {
        // A reply is in flight until the moment after its client has it.
        wait_until(|| server.metric(&format!("gridguard_server_{gauge}"), "") == 0.0);
    }
    server.stop();
}

/// A document with an entry for attention on f32 of this shape on the host, as `gridguard tune` makes it.
fn profile(guard: &Guard, sizes: [u64; 4]) -> Document {
    let [items, heads, frames, head_dim] = sizes;
    let shape = Shape::new(items, heads, frames, head_dim).expect("legal");
    let attention = backend::attention(shape, ElementType::F32, guard.limits()).expect("served");
    let key = attention.key(guard.limits(), Policy::default(), Objective::default());
    let mut document = Document::new(guard.identity(), guard.environment());
    let named = attention.sizes().into_iter().map(|(name, size)| (name.to_owned(), size));
    document
        .insert(Entry {
            key: key.expect("a key"),
            shape: named.collect(),
            choice: StoredChoice::Whole,
            parameters: Vec::new(),
            launches: 1,
            chosen: Summary::default(),
            default: Summary::default(),
            found: Provenance::default(),
        })
        .expect("legal");
    document
}

#[test]
fn profiles_are_loaded_again_on_sighup_and_a_broken_one_leaves_the_old() {
    let folder = tempfile::tempdir().expect("a folder");
    let guard = Guard::host(catalog::gpu("h200").expect("in the catalogue").limits.clone());
    let file = folder.path().join(guard.identity().file_name());
    let misses = folder.path().join("misses.ron");
    let [profiles, misses_name] =
        [folder.path(), &misses].map(|path| path.to_str().expect("UTF-8"));
    let misses_options = ["--misses", misses_name, "--misses-every", "10ms"];
    let options = [&["--profile", profiles, "--profile-every", "1h"][..], &misses_options].concat();
    let server = Server::start(&options);
    let built_in = server.metric("gridguard_server_profile_entries", "");
    let lookups = |matched: &str| {
        server.metric("gridguard_profile_lookups_total", &format!("match=\"{matched}\""))
    };
    let (_, body) = attention(&[3, 2, 4, 8], 1);
    assert_eq!(server.post("/v1/attention", &body).status, 200);
    assert_eq!(lookups("exact"), 0.0);
    wait_until(|| misses.exists());
    let missed = MissLog::read(&misses).expect("valid").expect("written").shapes;
    let sizes: Vec<u64> = missed[0].shape.iter().map(|(_, size)| *size).collect();
    assert_eq!((missed.len(), &*missed[0].key.kernel), (1, "temporal_attention"));
    assert_eq!(sizes, [3, 2, 4, 8]);

    let digests = || server.metric("gridguard_server_profile_info", "digest=");
    assert_eq!(digests(), 1.0);
    publish(&file, &profile(&guard, [3, 2, 4, 8])).expect("written");
    let reloads = |result: &str| {
        server.metric("gridguard_server_profile_reloads_total", &format!("\"{result}\""))
    };
    server.signal(Signal::HUP);
    wait_until(|| reloads("ok") == 1.0);
    assert_eq!(server.metric("gridguard_server_profile_entries", ""), built_in + 1.0);
    assert_eq!(server.post("/v1/attention", &body).status, 200);
    assert_eq!(lookups("exact"), 1.0);

    std::fs::write(&file, "(schema: 1, device: nonsense").expect("written");
    server.signal(Signal::HUP);
    wait_until(|| reloads("failed") == 1.0);
    assert!(server.log().contains("the old profile stays in use"), "{}", server.log());
    assert_eq!(server.post("/v1/attention", &body).status, 200);
    assert_eq!(lookups("exact"), 2.0);
    assert_eq!(server.metric("gridguard_server_profile_entries", ""), built_in + 1.0);
    server.stop();
}

#[test]
fn a_changed_profile_is_loaded_without_a_signal_and_its_digest_is_a_metric() {
    let folder = tempfile::tempdir().expect("a folder");
    let guard = Guard::host(catalog::gpu("h200").expect("in the catalogue").limits.clone());
    let name = guard.identity().file_name();
    let file = folder.path().join(&name);
    let profiles = folder.path().to_str().expect("UTF-8");
    let server = Server::start(&["--profile", profiles, "--profile-every", "10ms"]);
    let in_use = |digest: &str| {
        server.metric("gridguard_server_profile_info", &format!("digest=\"{digest}\""))
    };
    let [one, two] = [[3, 2, 4, 8], [5, 2, 4, 8]].map(|sizes| profile(&guard, sizes));
    let digest = |document: &Document| {
        let layers = Layers::new().user_at(folder.path()).built_in(&guard.identity());
        publish(&file, document).expect("written");
        layers.load(&guard.identity(), &guard.environment()).profile.choices_digest()
    };
    let first = digest(&one);
    wait_until(|| in_use(&first) == 1.0);
    std::fs::write(&file, "(schema: 1, device: nonsense").expect("written");
    wait_until(|| server.log().contains("the old profile stays in use"));
    assert_eq!(in_use(&first), 1.0);
    std::fs::remove_file(&file).expect("removed");
    let second = digest(&two);
    wait_until(|| in_use(&second) == 1.0);
    assert_eq!(in_use(&first), 0.0);
    server.stop();
}

#[test]
fn a_server_that_cannot_run_says_why() {
    let fails = |options: &[&str], reason: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gridguard-server"));
        let ended = command.args(options).env("GRIDGUARD_PROFILES", "off").output();
        let ended = ended.expect("it is built");
        assert_eq!(ended.status.code(), Some(2), "{}", text(&ended));
        assert!(text(&ended).contains(reason), "{}", text(&ended));
    };
    let any = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--devices"];
    fails(&[&any[..], &["host", "--weights", "/nonexistent"]].concat(), "/nonexistent: ");
    fails(&[&any[..], &["host", "--channels", "12"]].concat(), "not a multiple of 8");
    fails(&[&any[..], &["host", "--gpu", "abacus"]].concat(), "abacus");
    let server = Server::start(&[]);
    for taken in [&server.address, &server.admin] {
        fails(&["--devices", "host", "--listen", "127.0.0.1:0", "--admin", taken], taken);
    }
    server.stop();
}
