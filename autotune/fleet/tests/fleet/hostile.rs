//! Hostile registries: the folder keeps its last good profiles.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use bytes::Bytes;
use gridguard_fleet::{Channel, Digest, FleetError, Location, Puller, Store};
use http::{Method, StatusCode};
use ring::signature::Ed25519KeyPair;

use crate::registry::{Answer, Link, answer, with_header};
use crate::support::{
    Node, channel, channel_with, location, other_signer, profile, profiles, puller, push, signer,
    trusted, warps,
};

type Rewrite = fn(Bytes) -> Bytes;

/// Applies a change to each body of a path that contains `part`.
fn rewrite(link: &Link, part: &'static str, change: Rewrite) {
    link.set(move |request, answer: Answer| {
        let is_it = request.uri().path().contains(part) && request.method() == Method::GET;
        answer.map(|answer| if is_it { answer.map(change) } else { answer })
    });
}

fn flipped(body: Bytes) -> Bytes {
    let mut bytes = body.to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bytes.into()
}

fn cut(body: Bytes) -> Bytes {
    body.slice(..body.len() - 1)
}

fn nested(_: Bytes) -> Bytes {
    "[".repeat(100_000).into()
}

fn huge(_: Bytes) -> Bytes {
    " ".repeat(1 << 20).into()
}

fn replaced(body: &Bytes, from: &str, to: &str) -> Bytes {
    String::from_utf8(body.to_vec()).unwrap().replace(from, to).into()
}

#[tokio::test]
async fn whatever_is_wrong_with_an_answer_the_last_good_profile_stays() {
    let node = Node::with_release().await;
    push(&node.link, 2, 100).await;
    let cases: [(&str, &'static str, Rewrite); 11] = [
        ("changed", "blobs", flipped),
        ("cut", "blobs", cut),
        ("more than", "blobs", |body| [&*body, b" "].concat().into()),
        ("more than", "blobs", huge),
        ("manifest is no release", "manifests", cut),
        ("manifest is no release", "manifests", nested),
        ("more than", "manifests", huge),
        ("its media type is", "manifests", |body| {
            replaced(&body, "vnd.gridguard.release.v1+json", "vnd.oci.image.config.v1+json")
        }),
        ("no pinned key signed", "manifests", |body| {
            replaced(&body, "dev.gridguard.signatures", "dev.gridguard.nothing")
        }),
        ("more than", "blobs", nested),
        ("manifest is no release", "manifests", |_| "null".into()),
    ];
    for (expected, part, change) in cases {
        rewrite(&node.link, part, change);
        let refused = node.refusal().await;
        assert!(refused.is_refusal() && !refused.is_offline(), "{refused}");
        assert!(refused.to_string().contains(expected), "{refused}");
        assert_eq!(node.warps(), 1, "{refused}");
        channel(&node.link).verify().await.expect_err(expected);
    }
    node.link.heal();
    node.pull().await;
    assert_eq!(node.warps(), 2);
    assert_eq!(names(node.folder.path()), ["a.ron", "release.json"]);
}

#[tokio::test]
async fn a_profile_that_is_tampered_with_in_the_registry_is_refused() {
    let node = Node::with_release().await;
    let release = push(&node.link, 2, 100).await;
    // Consistently: the blob, and its digest in the statement and the manifest.
    let evil = profile("A", 3, 99);
    let (old, new) = (release.files[0].digest.to_string(), Digest::of(evil.as_bytes()).to_string());
    {
        let mut registry = node.link.registry();
        registry.blobs.insert(new.clone(), evil.into());
        let manifest = String::from_utf8(registry.tags["stable"].to_vec()).unwrap();
        let statement_digest = manifest.split("sha256:").nth(1).unwrap()[..64].to_owned();
        let statement = registry.blobs[&format!("sha256:{statement_digest}")].to_vec();
        let statement = String::from_utf8(statement).unwrap().replace(&old, &new);
        let changed = Digest::of(statement.as_bytes());
        registry.blobs.insert(changed.to_string(), statement.into());
        let manifest = manifest
            .replace(&format!("sha256:{statement_digest}"), &changed.to_string())
            .replace(&old, &new);
        registry.tags.insert("stable".into(), manifest.into());
    }
    let refused = node.refusal().await;
    assert!(matches!(refused, FleetError::Untrusted { .. }), "{refused}");
    assert_eq!(node.warps(), 1);
}

#[tokio::test]
async fn old_releases_other_channels_and_other_keys_are_refused() {
    let node = Node::new();
    push(&node.link, 1, 100).await;
    push(&node.link, 2, 100).await;
    node.pull().await;
    let old = node.link.registry().tags["stable-1"].clone();
    let good = node.link.registry().tags.insert("stable".into(), old).expect("a manifest");
    let refused = node.refusal().await;
    assert!(matches!(refused, FleetError::Replayed { found: 1, accepted: 2 }), "{refused}");

    // A second release with the same serial, from a registry that forgot the second one.
    push(&node.link, 3, 100).await;
    let refused = node.refusal().await;
    assert!(matches!(refused, FleetError::Forked { serial: 2 }), "{refused}");

    // Signed for another channel with the same key.
    let beta = location().with_tag("beta").expect("a tag");
    let store = Store::on(node.link.network(), &beta).expect("a store");
    let beta = Channel::new(store, beta, None, trusted());
    beta.push(&signer(), profiles(&[&profile("A", 3, 7)], 100)).await.expect("pushed");
    let moved = node.link.registry().tags["beta"].clone();
    node.link.registry().tags.insert("stable".into(), moved);
    let refused = node.refusal().await;
    assert!(matches!(refused, FleetError::OtherChannel { .. }), "{refused}");

    let stranger = node.link.another();
    stranger.registry().tags.remove("stable");
    let others = channel_with(&stranger, other_signer().trusted());
    others.push(&other_signer(), profiles(&[&profile("A", 3, 9)], 100)).await.expect("pushed");
    let refused = node.refusal().await;
    assert!(matches!(refused, FleetError::Untrusted { .. }), "{refused}");

    node.link.registry().tags.insert("stable".into(), good);
    node.pull().await;
    assert_eq!(node.warps(), 2);
}

#[tokio::test]
async fn an_unchanged_release_is_refused_once_its_key_is_removed() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    let with = |keys| Puller {
        channel: channel_with(&link, keys),
        ..puller(&link, folder.path(), "node")
    };
    push(&link, 1, 100).await;
    with(trusted()).pull().await.expect("pulled");
    let both = with(trusted().and(other_signer().trusted())).pull().await.expect("still trusted");
    assert!(!both.is_new);
    let refused = with(other_signer().trusted()).pull().await.expect_err("a removed key");
    assert!(matches!(refused, FleetError::Untrusted { .. }), "{refused}");
    assert_eq!(warps(folder.path()), 1);
}

/// Puts a statement that the pinned key signed into the registry.
fn plant(link: &Link, statement: &str) {
    let seed: Vec<u8> = (0..32).collect();
    let key = Ed25519KeyPair::from_seed_unchecked(&seed).expect("a key");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    use ring::signature::KeyPair;
    let id = &Digest::of(key.public_key().as_ref()).to_string()[7..23];
    let signed = [b"gridguard release v1\n", statement.as_bytes()].concat();
    let digest = Digest::of(statement.as_bytes());
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.gridguard.release.v1+json", "digest": digest, "size": statement.len(),
        },
        "layers": [],
        "annotations": {
            "dev.gridguard.signatures": format!("{id}:{}", hex(key.sign(&signed).as_ref())),
        },
    });
    let mut registry = link.registry();
    registry.blobs.insert(digest.to_string(), statement.to_owned().into());
    registry.tags.insert("stable".into(), manifest.to_string().into());
}

#[tokio::test]
async fn a_signed_statement_that_is_invalid_is_refused_too() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    let channel = channel_with(&link, other_signer().trusted());
    let puller = Puller { channel, folder: folder.path().to_owned(), node: "node".into() };
    let text = profile("A", 1, 1);
    let file = |name: &str, text: &str| {
        let digest = Digest::of(text.as_bytes());
        link.registry().blobs.insert(digest.to_string(), text.to_owned().into());
        serde_json::json!({
            "name": name, "digest": digest, "size": text.len(), "choices": "", "entries": 1, "device": "",
            "driver": "", "compiler": "", "tuner": "", "sources": {},
        })
    };
    let release = |schema: u64, files: &[serde_json::Value], more: &str| {
        let files = serde_json::to_string(files).unwrap();
        format!(
            r#"{{"schema":{schema},"channel":"profiles:stable","serial":1,"created":"","tool":"","files":{files}{more}}}"#
        )
    };
    let future = text.replace("date: \"\"", "date: \"2999-01-01T00:00:00Z\"");
    assert_ne!(future, text);
    let good = file("a.ron", &text);
    let mut too_large = good.clone();
    too_large["size"] = (100_u64 << 30).into();
    for (statement, expected) in [
        (release(2, &[], ""), "it has schema 2, this version reads schema 1"),
        ("[".repeat(10_000), "invalid"),
        (release(1, &[file("../a.ron", &text)], ""), "is no name of a profile"),
        (release(1, &[file("/a.ron", &text)], ""), "is no name of a profile"),
        (release(1, &[file("release.json", &text)], ""), "is no name of a profile"),
        (release(1, &[good.clone(), good.clone()], ""), "a name is twice"),
        (release(1, &[too_large], ""), "bytes are too many"),
        (release(1, &vec![good.clone(); 65], ""), "a name is twice"),
        (release(1, &[], r#","staged":{"percent":101,"files":[]}"#), "more than 100 percent"),
        (release(1, &[], r#","what":1"#), "unknown field"),
        (release(1, &[file("b.ron", &text)], ""), "it is a profile for a.ron"),
        (release(1, &[file("a.ron", "rubbish")], ""), "profile a.ron"),
        // Also on a machine whose clock is far in the past.
        (release(1, &[file("a.ron", &future)], ""), "in the future: check the clock"),
    ] {
        plant(&link, &statement);
        let refused = puller.pull().await.expect_err(expected);
        assert!(refused.is_refusal(), "{refused}");
        assert!(refused.to_string().contains(expected), "{refused}");
        assert!(names(folder.path()).is_empty());
    }
    plant(&link, &release(1, &[good], ""));
    puller.pull().await.expect("pulled");
    assert_eq!(warps(folder.path()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_or_dead_registry_is_an_error_in_time_and_the_old_profile_stays() {
    let node = Node::with_release().await;
    node.link.delay(Duration::from_secs(3600));
    let begun = tokio::time::Instant::now();
    let refused = node.refusal().await;
    assert!(matches!(refused, FleetError::TooSlow { .. }) && refused.is_offline(), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(130));
    node.link.delay(Duration::ZERO);
    node.link.set(|_, _| Err("connection refused"));
    let refused = node.refusal().await;
    assert!(
        refused.is_offline() && refused.to_string().contains("connection refused"),
        "{refused}"
    );
    node.link.set(|_, _| Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, Bytes::new())));
    assert!(node.refusal().await.is_offline());
    node.link.set(|_, _| Ok(answer(StatusCode::FORBIDDEN, Bytes::new())));
    let refused = node.refusal().await;
    assert!(matches!(refused, FleetError::Denied { status: 403, .. }), "{refused}");
    assert_eq!(node.puller.installed().expect("readable").expect("a release").serial, 1);
    assert_eq!(node.warps(), 1);
}

#[tokio::test]
async fn a_token_is_fetched_for_this_repository_kept_and_told_to_nobody_else() {
    let challenge = |realm: &str| {
        let challenge =
            format!(r#"Bearer realm="{realm}",service="r.example",scope="repository:x:push""#);
        with_header(StatusCode::UNAUTHORIZED, "www-authenticate", &challenge)
    };
    let link = Link::new();
    push(&link, 1, 100).await;
    let tokens = AtomicUsize::new(0);
    link.set(move |request, plain| {
        let (uri, token) = (request.uri(), request.headers().get("authorization"));
        match uri.host() {
            Some("auth.example") => {
                tokens.fetch_add(1, Ordering::Relaxed);
                let query = uri.query().unwrap_or_default();
                assert!(query.contains("scope=repository%3Agpu%2Fprofiles%3Apull"), "{query}");
                assert!(query.contains("service=r.example"), "{query}");
                Ok(answer(StatusCode::OK, r#"{"access_token":"secret"}"#.into()))
            }
            Some("storage.example") => {
                assert_eq!(token, None);
                plain
            }
            _ if token.is_none() => {
                assert_eq!(tokens.load(Ordering::Relaxed), 0, "the token is kept");
                Ok(challenge("https://auth.example/token"))
            }
            _ if uri.path().contains("/blobs/") => {
                let storage = format!("https://storage.example{}", uri.path());
                Ok(with_header(StatusCode::TEMPORARY_REDIRECT, "location", &storage))
            }
            _ => plain,
        }
    });
    channel(&link).verify().await.expect("valid");
    // A realm without encryption gets nothing, nor does a storage host.
    for (status, header, value, expected) in [
        (401, "www-authenticate", r#"Bearer realm="http://auth.example/token""#, "status 401"),
        (302, "location", "http://r.example/v2/", "from https to another scheme"),
    ] {
        link.set(move |request, _| {
            assert_eq!(
                (request.uri().host(), request.uri().scheme_str()),
                (Some("r.example"), Some("https"))
            );
            Ok(with_header(StatusCode::from_u16(status).unwrap(), header, value))
        });
        let refused = channel(&link).verify().await.expect_err("no token").to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[tokio::test]
async fn an_upload_goes_to_the_registry_alone() {
    let link = Link::new();
    link.set(|request, plain| {
        assert_eq!(request.uri().host(), Some("r.example"));
        plain.map(|plain| {
            with_header(plain.status(), "location", "https://elsewhere.example/upload")
        })
    });
    let change = profiles(&[&profile("A", 1, 1)], 100);
    let refused = channel(&link).push(&signer(), change).await.expect_err("elsewhere");
    assert!(refused.to_string().contains("no place of its own"), "{refused}");
    assert!(link.registry().tags.is_empty());
}

#[tokio::test]
async fn a_push_that_another_push_overtook_says_so() {
    let link = Link::new();
    push(&link, 1, 100).await;
    let first = link.registry().tags["stable"].clone();
    let reader = link.another();
    reader.set(move |request, plain| {
        let is_tag =
            request.method() == Method::GET && request.uri().path().ends_with("manifests/stable");
        if is_tag { plain.map(|plain| plain.map(|_| first.clone())) } else { plain }
    });
    let change = profiles(&[&profile("A", 1, 2)], 100);
    let refused = channel(&reader).push(&signer(), change).await.expect_err("overtaken");
    assert!(matches!(refused, FleetError::Forked { serial: 2 }), "{refused}");
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_keeps_its_record_and_heals() {
    let node = Node::new();
    push(&node.link, 1, 100).await;
    // As a full disk: the file cannot be renamed over a folder.
    let path = node.path("a.ron");
    fs::create_dir(&path).unwrap();
    let failed = node.refusal().await;
    assert!(matches!(failed, FleetError::Local { .. }), "{failed}");
    assert!(node.puller.installed().expect("readable").is_none());
    fs::remove_dir(&path).unwrap();
    node.pull().await;
    // Half a record is an error rather than a forgotten serial.
    let record = node.path("release.json");
    let text = fs::read_to_string(&record).unwrap();
    // So is one that names a file of somebody else.
    fs::write(node.path("victim.txt"), "theirs").unwrap();
    push(&node.link, 2, 100).await;
    for name in ["victim.txt", "./victim.txt", "../victim.txt", "sub/../victim.ron"] {
        fs::write(&record, text.replace("a.ron", name)).unwrap();
        let failed = node.refusal().await.to_string();
        assert!(failed.contains("release.json") && failed.contains(name), "{failed}");
    }
    fs::write(&record, &text[..text.len() / 2]).unwrap();
    let failed = node.refusal().await.to_string();
    assert!(failed.contains("release.json"), "{failed}");
    assert_eq!(node.warps(), 1);
    // Others may be writing into the folder.
    let theirs = [node.path(".a.ron.abcdef.tmp"), node.path(".own.ron.abcdef.tmp")];
    theirs.iter().for_each(|file| fs::write(file, "half").unwrap());
    fs::write(&record, text).unwrap();
    node.pull().await;
    assert!(node.warps() == 2 && theirs.iter().all(|file| file.exists()));
    assert!(node.path("victim.txt").exists());
    // A link may lead out of the folder.
    fs::remove_file(node.path("a.ron")).unwrap();
    std::os::unix::fs::symlink(node.path("victim.txt"), node.path("a.ron")).unwrap();
    assert!(node.refusal().await.to_string().contains("it is a link"));
    assert_eq!(fs::read(node.path("victim.txt")).unwrap(), b"theirs");
}

#[test]
fn pulls_at_the_same_time_wait_for_each_other() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime().block_on(push(&link, 1, 100));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let pulled = runtime().block_on(puller(&link, folder.path(), "node").pull());
                assert_eq!(pulled.expect("pulled").installed.serial, 1);
            });
        }
    });
    assert_eq!(warps(folder.path()), 1);
}

/// Pulls over the network from a server that gives these answers, and returns the error and the paths of the requests.
async fn over_network(answer: fn(path: &str, port: u16) -> String) -> (FleetError, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = std::thread::spawn(move || {
        let mut paths = Vec::new();
        for stream in listener.incoming() {
            let (mut stream, mut text) = (stream.unwrap(), [0; 4096]);
            let read = stream.read(&mut text).unwrap_or(0);
            let head = str::from_utf8(&text[..read]).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            if path == "/end" {
                break;
            }
            let head = answer(&path, port);
            let head = format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(head.as_bytes());
            paths.push(path);
        }
        paths
    });
    let location: Location =
        format!("oci+http://127.0.0.1:{port}/gpu/profiles:stable").parse().unwrap();
    let store = Store::open(&location).unwrap();
    let refused = Channel::new(store, location, None, trusted()).verify().await;
    let end = b"GET /end HTTP/1.1\r\n";
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(end).unwrap();
    (refused.expect_err("no release"), served.join().unwrap())
}

#[tokio::test]
async fn redirects_end_and_only_the_registry_may_ask_for_credentials() {
    let (refused, paths) = over_network(|_, _| "302 Found\r\nLocation: /again".to_owned()).await;
    assert!(
        refused.is_offline() && refused.to_string().contains("too many redirects"),
        "{refused}"
    );
    assert_eq!(paths.len(), 4);
    let (refused, paths) = over_network(|path, port| match path {
        "/storage" => format!(
            "401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\""
        ),
        _ => format!("307 Temporary Redirect\r\nLocation: http://localhost:{port}/storage"),
    })
    .await;
    assert!(matches!(refused, FleetError::Denied { status: 401, .. }), "{refused}");
    assert_eq!(paths, ["/v2/gpu/profiles/manifests/stable", "/storage"]);
    // Without TLS, the realm must be the registry's own.
    let (refused, paths) = over_network(|_, port| {
        format!(
            "401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"http://localhost:{port}/token\""
        )
    })
    .await;
    assert!(matches!(refused, FleetError::Denied { status: 401, .. }), "{refused}");
    assert_eq!(paths.len(), 1);
}

#[tokio::test]
async fn a_page_of_html_is_the_answer_of_no_registry() {
    let (refused, _) = over_network(|_, _| "200 OK\r\nContent-Type: text/html".to_owned()).await;
    let said = refused.to_string();
    assert!(refused.is_offline() && said.contains("stable at oci+http://127.0.0.1:"), "{said}");
    assert!(said.contains("a page of HTML, so no registry has answered"), "{said}");
}

#[tokio::test]
async fn a_registry_without_tls_is_told_from_one_that_is_away() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("oci://{}/gpu/profiles", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let _ = stream.read(&mut [0; 64]);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    });
    let refused = Store::open(&url.parse().unwrap()).unwrap().tags().await.expect_err("no TLS");
    assert!(refused.to_string().ends_with("write oci+http:// in place of oci://"), "{refused}");
}

fn names(folder: &Path) -> Vec<String> {
    let files =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = files.collect();
    names.sort();
    names
}
