//! The options of the server.

use std::net::SocketAddr;
use std::num::NonZeroU8;
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
    /// `auto` (all GPUs, or the host if there is none), `all`, `host`, or ordinals such as 0,2
    #[arg(long, value_name = "auto|all|host|N,..", default_value = "auto")]
    pub devices: Devices,
    /// GPU of the catalogue whose limits the host uses
    #[arg(long, value_name = "NAME", default_value = "h200")]
    pub gpu: String,
    /// Memory for requests on each device [default: 80 % of what is free; on the host 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Batches on each GPU at the same time: one computes while others are copied, and each has its share of the
    /// memory
    #[arg(long, value_name = "BATCHES", default_value = "10")]
    pub in_flight: NonZeroU8,
    /// The most frames of a request: the time of attention is quadratic in them
    #[arg(long, value_name = "FRAMES", default_value_t = 1024)]
    pub max_frames: u64,
    /// What requests and connections may take of the server
    #[command(flatten)]
    pub limits: Limits,
    /// Tuned profile, or a folder with one for each device; before the user's and the built-in ones
    #[arg(long, value_name = "FILE|FOLDER")]
    pub profile: Option<PathBuf>,
    /// Write the shapes that had no exact entry to this file, for `gridguard tune --shapes`
    #[arg(long, value_name = "FILE")]
    pub misses: Option<PathBuf>,
    /// How often; and when the server ends
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub misses_every: Duration,
    /// Which block is served
    #[command(flatten)]
    pub block: BlockOptions,
    /// The least level of events in the log on standard error: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: Level,
}

/// What requests and connections may take of the server.
#[derive(Clone, Debug, clap::Args)]
pub struct Limits {
    /// The most bytes of a body
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub max_body: u64,
    /// The most bytes of all bodies, received or being sent; beyond it requests get 429
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub max_bodies: u64,
    /// The most requests that wait; beyond it requests get 429
    #[arg(long, value_name = "REQUESTS", default_value_t = 256)]
    pub queue: u64,
    /// How long a request waits for others of its shape and type
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = time)]
    pub batch_wait: Duration,
    /// Tensors of a batch: one with more of them does not wait
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = size)]
    pub batch_bytes: u64,
    /// The most connections; others wait to be accepted
    #[arg(long, default_value_t = 1024)]
    pub connections: u32,
    /// Within which a client must send a request's headers, also on a connection that is kept open
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub header_timeout: Duration,
    /// Within which a client must send a request's body
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub body_timeout: Duration,
    /// For how long a client may read nothing of a reply
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub write_timeout: Duration,
    /// Within which accepted requests must be done after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub drain: Duration,
}

/// The limits of bodies.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// The most bytes of a body.
    pub body: u64,
    /// The most bytes of all bodies.
    pub bodies: u64,
    /// Within which a body must arrive.
    pub timeout: Duration,
}

impl Limits {
    /// Those of bodies.
    #[must_use]
    pub const fn bodies(&self) -> BodyLimits {
        BodyLimits { body: self.max_body, bodies: self.max_bodies, timeout: self.body_timeout }
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
        match text {
            "auto" => return Ok(Self::Auto),
            "all" => return Ok(Self::All),
            "host" => return Ok(Self::Host),
            _ => {}
        }
        let ordinals: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
        let mut ordinals =
            ordinals.map_err(|_| "expected auto, all, host, or ordinals such as 0,2")?;
        ordinals.sort_unstable();
        ordinals.dedup();
        Ok(Self::Ordinals(ordinals))
    }
}

/// A size in bytes, with a unit or without.
fn size(text: &str) -> Result<u64, String> {
    parse_size::parse_size(text).map_err(|error| format!("{error}, such as 64MiB"))
}

/// A time such as 2ms, of at most a year, so that any deadline can be counted.
///
/// # Errors
///
/// What is wrong with it.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| format!("{error}, such as 2ms"))?;
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
