//! The options of the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tracing::Level;

/// Serves temporal attention over HTTP, on all GPUs or on the host
#[derive(Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Address to listen on; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// Ordinals of the GPUs, such as 0,2 [default: all GPUs]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(crate) devices: Vec<usize>,
    /// Compute on the host, without a GPU
    #[arg(long, conflicts_with = "devices")]
    pub(crate) host: bool,
    /// GPU of the catalogue whose limits the host uses
    #[arg(long, value_name = "NAME", default_value = "h200")]
    pub(crate) gpu: String,
    /// Batches on each GPU at the same time: one computes while others are copied
    #[arg(long, value_name = "BATCHES", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) streams: u8,
    /// What requests and connections may take of the server
    #[command(flatten)]
    pub(crate) limits: Limits,
    /// Tuned profile, or a folder with one for each device; takes precedence over the user's and the built-in ones
    #[arg(long, value_name = "FILE|FOLDER")]
    pub(crate) profile: Option<PathBuf>,
    /// Write the shapes that had no exact entry to this file, for `gridguard tune --shapes`
    #[arg(long, value_name = "FILE")]
    pub(crate) misses: Option<PathBuf>,
    /// Time between two looks for changed profiles, which are loaded again, and between two writes of --misses
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub(crate) profile_every: Duration,
    /// Lowest level in the log on standard error: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log: Level,
}

/// What requests and connections may take of the server.
#[derive(Clone, clap::Args)]
pub(crate) struct Limits {
    /// Requests at the same time; others get 503
    #[arg(long, value_name = "REQUESTS", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) in_flight: u16,
    /// Connections at the same time; others wait to be accepted
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) connections: u16,
    /// Largest body of a request
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20)]
    pub(crate) max_body: usize,
    /// Largest number of frames in a request: the time of attention is quadratic in it
    #[arg(long, value_name = "FRAMES", default_value_t = 1024)]
    pub(crate) max_frames: u64,
    /// Longest wait of a request for others of its shape and type
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = time)]
    pub(crate) batch_wait: Duration,
    /// A batch does not wait when a tensor of it has so many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    pub(crate) batch_bytes: usize,
    /// Time limit for a request, from its headers to the beginning of the reply
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub(crate) timeout: Duration,
    /// Time limit for the headers of a request, also on a connection that is kept open
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = time)]
    pub(crate) header_timeout: Duration,
    /// Time limit for the body of a request
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) body_timeout: Duration,
    /// Time limit for a client that reads a reply
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub(crate) write_timeout: Duration,
    /// Time limit for requests that are in flight at SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) drain: Duration,
}

/// A time such as 2ms, of at most a year, so that any deadline can be counted.
fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|error| format!("{error}: write a time such as 2ms"))?;
    if time > LONGEST { Err("more than a year".to_owned()) } else { Ok(time) }
}

const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
