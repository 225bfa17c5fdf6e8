//! Debian's registry, started by the test: `tests/fleet.sh` installs it, and runs the command with other servers too.

use core::time::Duration;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use gridguard_fleet::{Channel, Location, Puller, Store};

use crate::support::{profile, profiles, signer, trusted, warps};

/// A process that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path, port: u16) -> Server {
    let program = std::env::var("DOCKER_REGISTRY").unwrap_or_else(|_| "docker-registry".to_owned());
    let config = folder.join("config.yml");
    let data = folder.join("data");
    let text = format!(
        "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
        data.display()
    );
    fs::write(&config, text).unwrap();
    let child = Command::new(program)
        .arg("serve")
        .arg(config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let server = Server(child.expect("docker-registry runs"));
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(600), "the registry does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

#[tokio::test]
#[ignore = "needs docker-registry: tests/fleet.sh"]
async fn a_blob_that_is_tampered_with_in_a_real_registry_is_refused() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _server = start(data.path(), port);
    let location: Location =
        format!("oci+http://127.0.0.1:{port}/gpu/profiles:stable").parse().expect("an address");
    let channel = || {
        Channel::new(Store::open(&location).expect("a store"), location.clone(), None, trusted())
    };
    // About a megabyte.
    let large = |number| profile("A", 2250, number);
    channel().push(&signer(), profiles(&[&large(1)], 100)).await.expect("pushed");
    let puller = |folder: &Path| Puller {
        channel: channel(),
        folder: folder.to_owned(),
        node: "node".into(),
    };
    let pulling = puller(folder.path());
    pulling.pull().await.expect("pulled");
    assert!(!pulling.pull().await.expect("pulled").is_new);
    assert_eq!(warps(folder.path()), 1);
    measure(&puller, large(1).len()).await;

    let release = channel().push(&signer(), profiles(&[&large(2)], 100)).await.expect("pushed");
    let hex = release.files[0].digest.to_string().replace("sha256:", "");
    let blob =
        data.path().join(format!("data/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]));
    let honest = fs::read(&blob).expect("the registry's file");
    let mut evil = honest.clone();
    evil[5000] ^= 1;
    fs::write(&blob, &evil).unwrap();
    assert!(pulling.pull().await.expect_err("tampered").is_refusal());
    fs::write(&blob, &honest[..5000]).unwrap();
    let refused = pulling.pull().await.expect_err("cut");
    assert!(refused.is_refusal() || refused.is_offline(), "{refused}");
    assert_eq!(warps(folder.path()), 1);
    fs::write(&blob, &honest).unwrap();

    assert!(pulling.pull().await.expect("pulled").is_new);
    assert_eq!(warps(folder.path()), 2);
}

/// Prints time and memory of pulls into empty folders.
async fn measure(puller: &impl Fn(&Path) -> Puller, bytes: usize) {
    let status = |name: &str| {
        let text = fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_end_matches("kB").trim().parse::<u64>().unwrap()
    };
    // The peak begins anew.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = status("VmRSS:");
    let mut times = Vec::new();
    for _ in 0..21 {
        let folder = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        puller(folder.path()).pull().await.expect("pulled");
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let (peak, [best, median, worst]) = (status("VmHWM:"), [0, 10, 20].map(|place| times[place]));
    println!(
        "pull of {bytes} bytes: best {best:.1} ms, median {median:.1} ms, worst {worst:.1} ms of 21; \
         memory {before} KiB before, {peak} KiB at the peak"
    );
}
