//! A server as a process of its own on the host, and a client that sends whatever it is told to.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use rustix::process::{Pid, Signal, kill_process};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

/// How long a condition may take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// For health and metrics.
    pub(crate) admin: String,
    pub(crate) folder: TempDir,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Server {
    /// Starts a server on the host with these options, and waits until it is ready.
    pub(crate) fn start(options: &[&str]) -> Self {
        let server =
            Self::spawn(Command::new(env!("CARGO_BIN_EXE_gridguard-server")).args(options));
        wait_until(|| server.get("/readyz").status == 200);
        server
    }

    /// Starts the server of a command, on a free port. Time limits that the command does not give are an hour.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        for limit in ["--header-timeout", "--body-timeout", "--write-timeout", "--drain"] {
            if command.get_args().all(|argument| argument != limit) {
                command.args([limit, "1h"]);
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        let log = File::create(folder.path().join("log")).expect("a log");
        let mut child = command
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--devices", "host", "--log", "debug"])
            // Independent of profiles on this machine.
            .env("GRIDGUARD_PROFILES", "off")
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the server is built");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut address = |before: &str| {
            let line = lines.next().expect("a line").expect("text");
            let address = line.strip_prefix(before);
            address.unwrap_or_else(|| panic!("{line:?}")).to_owned()
        };
        let address_of_clients = address("listening on http://");
        let admin = address("health and metrics on http://");
        Self { child, address: address_of_clients, admin, folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("a log")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits for the process to end by itself.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begun.elapsed() < LIMIT, "the server does not end:\n{}", self.log());
            sleep(POLL);
        }
    }

    /// Sends SIGTERM and expects that all requests are done.
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.ended();
        assert!(status.success(), "{status}:\n{}", self.log());
    }

    /// What operators ask for.
    pub(crate) fn get(&self, path: &str) -> Reply {
        let mut stream = connect(&self.admin);
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        read_reply(stream)
    }

    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Reply {
        self.send(&post(path, body))
    }

    /// Sends bytes on a connection of its own, and reads the reply to its end.
    pub(crate) fn send(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.connect();
        // A server that refuses a body closes before it has read all of it.
        let _ = stream.write_all(bytes);
        read_reply(stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(&self.address)
    }

    /// Bytes of memory that the process has.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// The sum of a metric over labels that contain `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> f64 {
        let text = String::from_utf8(self.get("/metrics").body).expect("text");
        let is_it = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
                && line.contains(labels)
        };
        let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
        text.lines().filter(is_it).filter_map(value).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reply {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// The status and the code of an error.
    pub(crate) fn error(&self) -> (u16, String) {
        let code = self.json()["error"]["code"].as_str().expect("a code").to_owned();
        (self.status, code)
    }

    /// The output and its shape.
    pub(crate) fn out<T: Pod>(&self) -> (Vec<usize>, Vec<T>) {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        let file = SafeTensors::deserialize(&self.body).expect("safetensors");
        let out = file.tensor("out").expect("out");
        (out.shape().to_vec(), bytemuck::pod_collect_to_vec(out.data()))
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream
}

/// Runs the load generator, which sends all its requests, however long that takes.
pub(crate) fn load(server: &Server, options: &[&str]) -> Output {
    let mut command = Command::new(program("gridguard-load", "gridguard-load"));
    let limits = ["--duration", "1h", "--timeout", "1h"];
    command.arg(server.url()).args(limits).args(options).output().expect("it is built")
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr].concat()).expect("UTF-8")
}

/// The bytes of a request.
pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// A reply, read until the server closes the connection.
pub(crate) fn read_reply(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    // What was received counts, also if the connection is reset after it.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no reply: {:?}", String::from_utf8_lossy(&bytes)));
    let head = std::str::from_utf8(&bytes[..end]).expect("a head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status");
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_lowercase(), value.to_owned()))
    };
    Reply {
        status: status.parse().expect("a number"),
        headers: lines.filter_map(header).collect(),
        body: bytes[end + 4..].to_vec(),
    }
}

/// A safetensors body of f32 tensors.
pub(crate) fn body(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dims, elements)| {
        let view = TensorView::new(Dtype::F32, dims.to_vec(), bytemuck::cast_slice(elements));
        (*name, view.expect("a tensor"))
    });
    safetensors::serialize(views, None).expect("a body")
}

/// q, k and v of this shape, and their body.
pub(crate) fn attention(dims: &[usize], seed: u64) -> ([Vec<f32>; 3], Vec<u8>) {
    let qkv = [0, 1, 2].map(|tensor| random(dims.iter().product(), 3 * seed + tensor));
    let named = [("q", dims, &qkv[0][..]), ("k", dims, &qkv[1]), ("v", dims, &qkv[2])];
    let body = body(&named);
    (qkv, body)
}

pub(crate) fn random(elements: usize, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..elements).map(|_| random.f32() * 2.0 - 1.0).collect()
}

pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "the condition does not come");
        sleep(POLL);
    }
}

/// Builds a program of the workspace in the folder of the tests, unless it is there.
pub(crate) fn program(package: &str, name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let program = test.parent().and_then(Path::parent).expect("the build folder").join(name);
    if !program.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", package]);
        build.args((!cfg!(debug_assertions)).then_some("--release"));
        assert!(build.status().expect("cargo runs").success(), "{package} is built");
    }
    program
}

const POLL: Duration = Duration::from_millis(20);
