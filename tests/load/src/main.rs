//! A load generator for the inference server: `gridguard-load --help`.

mod client;
mod inputs;
mod report;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use clap::Parser;
use gridguard_kernels::{Element, ElementType};
use half::{bf16, f16};
use serde_json::Value;

use crate::client::Client;
use crate::inputs::Inputs;
use crate::report::{Outcome, report};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Sends random requests to a server, compares replies with an f64 reference, and prints throughput, latencies and
/// statuses as JSON
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Options {
    /// The server's address, such as 127.0.0.1:8080
    server: SocketAddr,
    /// Items, heads, frames and elements of a head of each request
    #[arg(long, value_name = "ITEMSxHEADSxFRAMESxHEAD_DIM", default_value = "16x5x16x64", value_parser = shape)]
    shape: [u64; 4],
    /// Type of the tensors
    #[arg(long, value_name = "f16|bf16|f32", default_value = "f16", value_parser = element)]
    dtype: ElementType,
    /// The most requests
    #[arg(long, default_value_t = 1000)]
    requests: u64,
    /// The longest time to send requests
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Requests at the same time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrency: u32,
    /// Send requests at this rate a second without waiting for replies, up to --concurrency; latency then counts from
    /// a request's due time
    #[arg(long, value_name = "REQUESTS", value_parser = rate)]
    rate: Option<f64>,
    /// Compare every so many-th reply with the reference; 0 compares none
    #[arg(long, value_name = "REPLIES", default_value_t = 10)]
    verify_every: u64,
}

/// The number of a request, and when it is due.
type Due = (u64, Instant);

fn main() -> ExitCode {
    let options = Options::parse();
    let ran = match options.dtype {
        ElementType::F16 => run::<f16>(&options),
        ElementType::Bf16 => run::<bf16>(&options),
        ElementType::F32 => run::<f32>(&options),
    };
    match ran {
        Ok((report, is_good)) => {
            println!("{report:#}");
            if report["served"] == 0 {
                eprintln!("error: nothing was served");
            }
            if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run<T: Element + Sync>(options: &Options) -> Fallible<(Value, bool)> {
    let inputs = Inputs::<T>::new(options.shape)?;
    // A request is taken by a client that waits for one, or by none.
    let (sender, due) = sync_channel(0);
    let due = Mutex::new(due);
    let begun = Instant::now();
    let (outcomes, skipped) = scope(|scope| {
        let client = || answer(options, &inputs, &due);
        let clients: Vec<_> = (0..options.concurrency).map(|_| scope.spawn(client)).collect();
        let skipped = send_all(options, sender);
        let ended =
            clients.into_iter().map(|client| client.join().map_err(|_| "a client panicked"));
        Ok::<_, &str>((ended.collect::<Result<Vec<_>, _>>()?, skipped))
    })?;
    Ok(report(&outcomes.into_iter().flatten().collect::<Vec<_>>(), skipped, begun))
}

/// Hands out requests until their number or the time is over, and returns how many no client was free for.
fn send_all(options: &Options, sender: SyncSender<Due>) -> u64 {
    let (begun, mut skipped) = (Instant::now(), 0);
    for number in 0..options.requests {
        let Some(rate) = options.rate else {
            if begun.elapsed() >= options.duration || sender.send((number, Instant::now())).is_err()
            {
                break;
            }
            continue;
        };
        let after = Duration::from_secs_f64(rate.recip())
            .saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        if after >= options.duration {
            break;
        }
        sleep(after.saturating_sub(begun.elapsed()));
        match sender.try_send((number, begun + after)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => skipped += 1,
            Err(TrySendError::Disconnected(_)) => break,
        }
    }
    skipped
}

/// Sends the requests that are due, one after another on a connection.
fn answer<T: Element>(
    options: &Options,
    inputs: &Inputs<T>,
    due: &Mutex<Receiver<Due>>,
) -> Vec<Outcome> {
    let (mut client, mut outcomes) = (Client::new(options.server), Vec::new());
    loop {
        let next = due.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, at)) = next else { return outcomes };
        let replied = client.post("/v1/attention", inputs.body(number));
        let ended = Instant::now();
        let is_compared = options.verify_every > 0 && number.is_multiple_of(options.verify_every);
        let verified = match &replied {
            Ok((200, body)) if is_compared => Some(inputs.is_correct(number, body)),
            _ => None,
        };
        let status = replied.map(|(status, _)| status).map_err(|error| error.kind().to_string());
        outcomes.push(Outcome { status, latency: ended - at, ended, verified });
    }
}

fn shape(text: &str) -> Result<[u64; 4], String> {
    let sizes: Result<Vec<u64>, _> = text.split('x').map(str::parse).collect();
    let sizes = sizes.ok().and_then(|sizes| sizes.try_into().ok());
    sizes.ok_or_else(|| "expected four sizes such as 16x5x16x64".to_owned())
}

fn element(name: &str) -> Result<ElementType, String> {
    let found = ElementType::ALL.into_iter().find(|element| element.name() == name);
    found.ok_or_else(|| "expected f16, bf16 or f32".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1e-3..=1e6).contains(rate));
    rate.ok_or_else(|| "expected 0.001 to 1000000 requests a second".to_owned())
}
