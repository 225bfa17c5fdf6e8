//! Clients that wear a server out, beside the ordinary ones.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use gridguard_kernels::ElementType;
use gridguard_server::error::Fallible;
use gridguard_server::tensors::body_of;
use hyper::Uri;
use hyper::body::Bytes;
use parking_lot::Mutex;
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Which attack runs.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AttackOptions {
    /// Attack the server while ordinary requests, which are measured, are sent
    #[arg(long, value_enum)]
    attack: Option<Attack>,
    /// Connections of the attack
    #[arg(long, default_value_t = 16, requires = "attack")]
    attackers: u16,
    /// Source address of the attackers [default: 127.0.0.2 for a server on this machine, else any]
    #[arg(long, value_name = "ADDRESS", requires = "attack")]
    attack_from: Option<IpAddr>,
}

/// What an attacker does, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Attack {
    /// Sends requests of one shape, so that there is always a full batch of it
    HotShape,
    /// Sends requests with a different mask each
    Masks,
    /// Sends bodies whose header has a million tensors of no elements
    Header,
    /// Sends the largest body with the most frames
    Quadratic,
    /// Sends a request that takes a while, and leaves
    Leavers,
    /// Asks for a large reply, and reads it slowly
    SlowReaders,
    /// Opens a connection, and sends nothing
    Idle,
    /// Sends a part of a body, and leaves
    Cut,
    /// Declares fewer bytes than it sends
    TooShort,
    /// Declares more bytes than it sends, and waits
    TooLong,
    /// Sends chunks without an end
    Endless,
}

/// What came of an attack.
#[derive(Debug, Serialize)]
pub(crate) struct AttackSummary {
    pub(crate) kind: String,
    /// Connections that ended.
    pub(crate) connections: usize,
    /// Connections by the status of the reply, or by what came instead.
    pub(crate) ends: BTreeMap<String, usize>,
}

/// An attack that runs until it is dropped.
pub(crate) struct Running {
    kind: Attack,
    ends: Arc<Mutex<BTreeMap<String, usize>>>,
    _attackers: JoinSet<()>,
}

/// The bytes that a connection sends, and its next action.
struct Sent {
    /// Headers of the request, without those of its length.
    head: String,
    body: Bytes,
    then: Then,
}

enum Then {
    Read,
    /// After so long.
    Leave(Duration),
    /// So many bytes a second.
    ReadSlowly(usize),
    /// Sends the body again and again.
    Repeat,
}

impl AttackOptions {
    /// Begins the attack, if there is one.
    pub(crate) fn begin(&self, server: &Uri) -> Fallible<Option<Running>> {
        let Some(kind) = self.attack else { return Ok(None) };
        let host = server.host().unwrap_or_default().parse::<IpAddr>();
        let host = host.map_err(|_| "an attack needs the address of the server, not its name")?;
        let to = SocketAddr::new(host, server.port_u16().unwrap_or(80));
        let other = host.is_loopback().then_some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)));
        let from = self.attack_from.or(other.filter(|_| host.is_ipv4()));
        let ends = Arc::new(Mutex::new(BTreeMap::new()));
        let sent = Arc::new(kind.sent()?);
        let mut attackers = JoinSet::new();
        for attacker in 0..self.attackers {
            let (ends, sent) = (Arc::clone(&ends), Arc::clone(&sent));
            attackers.spawn(async move {
                for number in 0_u32.. {
                    let body = kind.body(&sent, attacker, number);
                    let ended = match connect(from, to).await {
                        Ok(stream) => attack(stream, &sent, body).await,
                        Err(error) => Err(error),
                    };
                    let end = ended.unwrap_or_else(|error| error.kind().to_string());
                    *ends.lock().entry(end).or_default() += 1;
                    // What the server refuses at once must not take this machine's processors.
                    sleep(PAUSE).await;
                }
            });
        }
        Ok(Some(Running { kind, ends, _attackers: attackers }))
    }
}

impl Running {
    pub(crate) fn summary(&self) -> AttackSummary {
        let ends = self.ends.lock().clone();
        let connections = ends.values().sum();
        AttackSummary { kind: format!("{:?}", self.kind), connections, ends }
    }
}

impl Attack {
    fn sent(self) -> Fallible<Sent> {
        let of = |items: usize, frames: usize, head_dim: usize| {
            let dims = [items, 1, frames, head_dim];
            let data = vec![0; dims.iter().product::<usize>() * 2];
            body_of(ElementType::F16, &dims, &[("q", &data), ("k", &data), ("v", &data)])
        };
        let whole = |body: Vec<u8>, then| {
            let head = format!("Content-Length: {}", body.len());
            Sent { head, body: body.into(), then }
        };
        Ok(match self {
            Self::HotShape => whole(of(64, 16, 64)?, Then::Read),
            Self::Masks => whole(masked()?, Then::Read),
            Self::Header => whole(many_tensors(), Then::Read),
            // 63 MiB.
            Self::Quadratic => whole(of(10_752, 1024, 1)?, Then::Read),
            Self::Leavers => whole(of(64, 256, 32)?, Then::Leave(Duration::from_millis(5))),
            // 21 MiB at 0.8 MiB/s.
            Self::SlowReaders => whole(of(21 << 14, 1, 32)?, Then::ReadSlowly(838_861)),
            Self::Idle => Sent { head: String::new(), body: Bytes::new(), then: Then::Read },
            Self::Cut => {
                let mut sent = whole(of(64, 16, 64)?, Then::Leave(Duration::ZERO));
                sent.body.truncate(sent.body.len() / 2);
                sent
            }
            Self::TooShort | Self::TooLong => {
                let mut sent = whole(of(1, 16, 64)?, Then::Read);
                let length = sent.body.len();
                let declared = if self == Self::TooShort { length / 2 } else { length * 2 };
                sent.head = format!("Content-Length: {declared}");
                sent
            }
            Self::Endless => {
                let head = "Transfer-Encoding: chunked".to_owned();
                let body = [&b"10000\r\n"[..], &[0; 1 << 16], b"\r\n"].concat();
                Sent { head, body: body.into(), then: Then::Repeat }
            }
        })
    }

    /// The body of a request. Each request has its own mask.
    fn body(self, sent: &Sent, attacker: u16, number: u32) -> Bytes {
        if self != Self::Masks {
            return sent.body.clone();
        }
        let mut body = sent.body.to_vec();
        let number = [&number.to_le_bytes()[..], &attacker.to_le_bytes()].concat();
        // The file has its tensors by name: q and v follow the mask.
        let end = body.len().saturating_sub(2 * MASKED_BYTES);
        if let Some(last) = body.get_mut(end.saturating_sub(number.len())..end) {
            last.copy_from_slice(&number);
        }
        body.into()
    }
}

/// Attention with a mask. Its tensors take 1 MiB on a device.
fn masked() -> Fallible<Vec<u8>> {
    let (large, mask) = (vec![0; MASKED_BYTES], vec![0; 4 * 4 * 2]);
    let tensor = |dims: &[usize], data| TensorView::new(Dtype::F16, dims.to_vec(), data);
    let mut tensors = vec![("mask", tensor(&[4, 4], &mask)?)];
    for name in ["q", "k", "v"] {
        tensors.push((name, tensor(&[512, 4, 64], &large)?));
    }
    Ok(safetensors::serialize(tensors, None)?)
}

fn many_tensors() -> Vec<u8> {
    let one = |number| format!(r#""{number}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
    let tensors: Vec<String> = (0..1_000_000).map(one).collect();
    let header = format!("{{{}}}", tensors.join(","));
    let length = u64::try_from(header.len()).unwrap_or(0).to_le_bytes();
    [&length[..], header.as_bytes()].concat()
}

async fn connect(from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(from) = from {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    // A large buffer would hide that the client reads slowly.
    socket.set_recv_buffer_size(1 << 16)?;
    socket.connect(to).await
}

/// The status of the reply, or what came instead.
async fn attack(mut stream: TcpStream, sent: &Sent, body: Bytes) -> io::Result<String> {
    if !sent.head.is_empty() {
        let head = format!(
            "POST /v1/attention HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{}\r\n\r\n",
            sent.head
        );
        stream.write_all(head.as_bytes()).await?;
        // A server that refuses a body may close before it has read all of it.
        let _ = stream.write_all(&body).await;
    }
    let mut part = vec![0; 1 << 16];
    let pause = match sent.then {
        Then::Leave(after) => {
            sleep(after).await;
            return Ok("left".to_owned());
        }
        Then::Repeat => {
            let mut writes = 0;
            while writes < MOST_WRITES && stream.write_all(&body).await.is_ok() {
                writes += 1;
            }
            Duration::ZERO
        }
        Then::ReadSlowly(rate) => {
            part.truncate(rate / 20);
            Duration::from_millis(50)
        }
        Then::Read => Duration::ZERO,
    };
    let mut first = Vec::new();
    loop {
        let read = timeout(LONGEST, stream.read(&mut part)).await;
        let Ok(read) = read else { return Ok("no reply".to_owned()) };
        match read {
            Ok(0) => break,
            // What came before the end of the connection counts.
            Err(error) if first.is_empty() => return Err(error),
            Err(error) => return Ok(format!("{} then {}", status(&first), error.kind())),
            Ok(bytes) if first.len() < STATUS_BYTES => {
                first.extend_from_slice(part.get(..bytes.min(STATUS_BYTES)).unwrap_or_default());
            }
            Ok(_) => {}
        }
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    Ok(status(&first))
}

fn status(reply: &[u8]) -> String {
    let status = reply.get(9..STATUS_BYTES).and_then(|status| std::str::from_utf8(status).ok());
    status.unwrap_or("closed").to_owned()
}

/// Bytes of q, k and v each, in a request with a mask.
const MASKED_BYTES: usize = 512 * 4 * 64 * 2;
/// Bytes of `HTTP/1.1 200`.
const STATUS_BYTES: usize = 12;
const PAUSE: Duration = Duration::from_millis(2);
/// For a part of a reply.
const LONGEST: Duration = Duration::from_secs(600);
/// 2 GiB in chunks.
const MOST_WRITES: u32 = 1 << 15;
