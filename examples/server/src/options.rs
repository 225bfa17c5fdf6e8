//! The options of the server.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroU64};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use tracing::Level;

use crate::block::BlockOptions;

/// Serves temporal attention and a transformer block over HTTP, on all GPUs or on the host
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// Address to listen on; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Address for health and metrics: keep it from clients
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub admin: SocketAddr,
    /// `auto` (all GPUs, or the host if there is none), `all`, `host`, or ordinals such as 0,2
    #[arg(long, value_name = "auto|all|host|N,..", default_value = "auto")]
    pub devices: Devices,
    /// GPU of the catalogue whose limits the host uses
    #[arg(long, value_name = "NAME", default_value = "h200")]
    pub gpu: String,
    /// Memory for requests on each device [default: 80 % of the free memory; on the host 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Batches on each GPU at the same time, which share its memory: one computes while others are copied
    #[arg(long, value_name = "BATCHES", default_value = "10")]
    pub in_flight: NonZeroU8,
    /// What requests and connections may take of the server
    #[command(flatten)]
    pub limits: Limits,
    /// Tuned profile, or a folder with one for each device; takes precedence over the user's and the built-in ones
    #[arg(long, value_name = "FILE|FOLDER")]
    pub profile: Option<PathBuf>,
    /// Time between two looks for changed profiles, which are loaded again
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub profile_every: Duration,
    /// Write the shapes that had no exact entry to this file, for `gridguard tune --shapes`
    #[arg(long, value_name = "FILE")]
    pub misses: Option<PathBuf>,
    /// Time between two writes of --misses, which is also written at the end
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub misses_every: Duration,
    /// Which block is served
    #[command(flatten)]
    pub block: BlockOptions,
    /// Lowest level in the log on standard error: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: Level,
}

/// What requests and connections may take of the server.
#[derive(Clone, Debug, clap::Args)]
pub struct Limits {
    /// Largest number of frames in a request: the time of attention is quadratic in it
    #[arg(long, value_name = "FRAMES", default_value_t = 1024)]
    pub max_frames: u64,
    /// Largest body of a request
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub max_body: u64,
    /// Largest sum of the bodies of unfinished requests; others get 429
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub max_bodies: u64,
    /// Largest sum of the replies that are not sent yet; other requests get 429
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub max_replies: u64,
    /// Longest estimated computation of a request; longer ones get 422
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub max_work: Duration,
    /// Longest estimated computation of all accepted requests, which bounds the wait; others get 429
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub queue_work: Duration,
    /// Largest share of one client, by its address, in each of the limits on queue, work, bodies, replies and
    /// connections. Several clients get less each. Use 100 behind a proxy, which looks like one client
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub peer_share: u8,
    /// Largest number of waiting requests; others get 429
    #[arg(long, value_name = "REQUESTS", default_value_t = 256)]
    pub queue: u64,
    /// Longest wait of a request for others of its shape and type
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = time)]
    pub batch_wait: Duration,
    /// A batch with tensors of at least this size does not wait
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = size)]
    pub batch_bytes: u64,
    /// Largest number of connections; others get 429 and are closed
    #[arg(long, default_value_t = 1024)]
    pub connections: u32,
    /// Time limit for the headers of a request, also on a connection that is kept open
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub header_timeout: Duration,
    /// Time limit for the body of a request
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub body_timeout: Duration,
    /// Time limit for a client that reads nothing of a reply
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub write_timeout: Duration,
    /// Bytes of a reply that a client must read each second, after --write-timeout
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = rate)]
    pub least_rate: NonZeroU64,
    /// Time limit for accepted requests after SIGTERM: then the server ends, whatever runs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub drain: Duration,
}

impl Limits {
    /// How long a client may take to read a reply of `bytes` bytes.
    pub fn to_read(&self, bytes: u64) -> Duration {
        self.write_timeout.saturating_add(Duration::from_secs(bytes / self.least_rate))
    }
}

/// Which devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// All GPUs, or the host if there is none.
    Auto,
    /// All GPUs.
    All,
    /// The host.
    Host,
    /// The GPUs with these ordinals.
    Ordinals(Vec<usize>),
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ordinals: Result<BTreeSet<usize>, _> = text.split(',').map(str::parse).collect();
        match (text, ordinals) {
            ("auto", _) => Ok(Self::Auto),
            ("all", _) => Ok(Self::All),
            ("host", _) => Ok(Self::Host),
            (_, Ok(ordinals)) => Ok(Self::Ordinals(ordinals.into_iter().collect())),
            (_, Err(_)) => Err("expected auto, all, host, or ordinals, for example 0,2".to_owned()),
        }
    }
}

/// A size in bytes, with a unit or without.
fn size(text: &str) -> Result<u64, String> {
    parse_size::parse_size(text).map_err(|error| format!("{error}: write a size such as 64MiB"))
}

fn rate(text: &str) -> Result<NonZeroU64, String> {
    NonZeroU64::new(size(text)?).ok_or_else(|| "expected at least one byte".to_owned())
}

/// A time such as 2ms, of at most a year, so that any deadline can be counted.
///
/// # Errors
///
/// What is wrong with it.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|error| format!("{error}: write a time such as 2ms"))?;
    if time > LONGEST { Err("more than a year".to_owned()) } else { Ok(time) }
}

/// Memory for requests on the host by default.
pub const HOST_MEMORY: u64 = 1 << 30;
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_are_consistent_and_devices_are_read() {
        Options::command().debug_assert();
        assert_eq!("2,0,2".parse(), Ok(Devices::Ordinals(vec![0, 2])));
        assert_eq!("host".parse(), Ok(Devices::Host));
        for wrong in ["", "gpu", "0,", "-1"] {
            assert!(wrong.parse::<Devices>().is_err(), "{wrong:?}");
        }
    }
}
