//! A server as a process of its own on the host, and a client that sends whatever it is told to.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

/// How long a condition may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(20);

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    folder: TempDir,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Server {
    /// Starts a server on the host. Time limits that the options do not give are an hour.
    pub(crate) fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let log = File::create(folder.path().join("log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_gridguard-server"));
        for limit in
            ["--timeout", "--header-timeout", "--body-timeout", "--write-timeout", "--drain"]
        {
            command.args([limit, "1h"].iter().filter(|_| !options.contains(&limit)));
        }
        command.args(["--listen", "127.0.0.1:0", "--host", "--log", "debug"]).args(options);
        // Independent of profiles on this machine.
        command.env("GRIDGUARD_PROFILES", "off");
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("it is built");
        let mut line = String::new();
        let printed = child.stdout.take().expect("piped");
        BufReader::new(printed).read_line(&mut line).expect("text");
        let address = line.trim().strip_prefix("listening on http://").expect("an address");
        Self { child, address: address.to_owned(), folder }
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
        let mut status = None;
        wait_until(|| {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("it ended")
    }

    /// Sends SIGTERM and expects that all requests are done.
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.ended();
        assert!(status.success(), "{status}:\n{}", self.log());
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
    }

    pub(crate) fn post(&self, query: &str, body: &[u8]) -> Reply {
        self.send(&post(query, body))
    }

    /// Sends bytes on a connection of its own, and reads the reply to its end.
    pub(crate) fn send(&self, bytes: &[u8]) -> Reply {
        read_reply(self.begin(bytes))
    }

    /// Sends bytes on a connection of its own.
    pub(crate) fn begin(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        // A server that refuses a body closes before it has read all of it.
        let _ = stream.write_all(bytes);
        stream
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
    /// The status, the code and the rest of an error.
    pub(crate) fn error(&self) -> (u16, String, serde_json::Value) {
        let json: serde_json::Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"));
        let error = json["error"].clone();
        (self.status, error["code"].as_str().expect("a code").to_owned(), error)
    }

    /// The output and its shape.
    pub(crate) fn out(&self) -> (Vec<usize>, Vec<f32>) {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        let file = SafeTensors::deserialize(&self.body).expect("safetensors");
        let out = file.tensor("out").expect("out");
        (out.shape().to_vec(), bytemuck::pod_collect_to_vec(out.data()))
    }
}

/// A program of the workspace, built in the folder of the tests unless it is there.
pub(crate) fn program(package: &str, name: &str) -> Command {
    let test = std::env::current_exe().expect("this program");
    let program = test.parent().and_then(Path::parent).expect("the build folder").join(name);
    if !program.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", package]);
        build.args((!cfg!(debug_assertions)).then_some("--release"));
        assert!(build.status().expect("cargo runs").success(), "{package} is built");
    }
    Command::new(program)
}

/// The bytes of a request for attention.
pub(crate) fn post(query: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST /v1/attention{query} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
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

/// A safetensors body of tensors.
pub(crate) fn body(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, dims, bytes)| {
        (*name, TensorView::new(*dtype, dims.to_vec(), bytes).expect("a tensor"))
    });
    safetensors::serialize(views, None).expect("a body")
}

/// q, k and v of this shape, and their body.
pub(crate) fn attention(dims: [usize; 4], seed: u64) -> ([Vec<f32>; 3], Vec<u8>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let elements: usize = dims.iter().product();
    let qkv = [(); 3].map(|()| (0..elements).map(|_| random.f32() * 2.0 - 1.0).collect::<Vec<_>>());
    let [q, k, v] = qkv.each_ref().map(|tensor| bytemuck::cast_slice(tensor));
    let body = body(&[
        ("q", Dtype::F32, &dims, q),
        ("k", Dtype::F32, &dims, k),
        ("v", Dtype::F32, &dims, v),
    ]);
    (qkv, body)
}

pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "the condition does not come");
        sleep(POLL);
    }
}
