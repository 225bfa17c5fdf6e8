//! A load generator for the server: `gridguard-load --help`.

mod attack;
mod inputs;
mod report;

use std::collections::HashSet;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use gridguard_kernels::{Element, ElementType};
use gridguard_server::block::BlockOptions;
use gridguard_server::error::Fallible;
use gridguard_server::options::time;
use gridguard_server::tensors::Endpoint;
use half::{bf16, f16};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::http::Extensions;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::connect::{HttpConnector, HttpInfo};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::TokioExecutor;
use mimalloc::MiMalloc;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};

use crate::attack::AttackOptions;
use crate::inputs::Inputs;
use crate::report::{Outcome, Report};

/// Sends random requests to a server, compares replies with an f64 reference, and reports throughput,
/// latency and statuses
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Options {
    /// The server, such as http://127.0.0.1:8080
    url: String,
    /// The resource
    #[arg(long, value_enum, default_value_t = Endpoint::Attention)]
    resource: Endpoint,
    /// Items, heads, frames and elements of a head of each request; the block has its own heads and channels. May be
    /// repeated: three requests out of four have the first shape, and the other shapes take turns
    #[arg(long, value_name = "ITEMSxHEADSxFRAMESxHEAD_DIM", default_value = "16x5x16x64", value_parser = shape)]
    shape: Vec<[u64; 4]>,
    /// The most requests
    #[arg(long, default_value_t = 1000)]
    requests: u64,
    /// The longest time to send requests
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    duration: Duration,
    /// Requests at the same time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,
    /// Send requests at this rate a second without waiting for replies, up to --concurrency; latency then counts from a
    /// request's due time
    #[arg(long, value_name = "REQUESTS", value_parser = rate)]
    rate: Option<f64>,
    /// Compare every so many-th reply with the reference; 0 compares none
    #[arg(long, value_name = "REPLIES", default_value_t = 10)]
    verify_every: u64,
    /// How long to wait for a reply
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    timeout: Duration,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The block that the server has, and the type of the tensors
    #[command(flatten)]
    block: BlockOptions,
    /// An attack beside the requests
    #[command(flatten)]
    attack: AttackOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines for people.
    Text,
    /// One JSON object; times are in seconds.
    Json,
}

/// What all requests share.
struct Sender<T: Element> {
    client: Client<HttpConnector, Full<Bytes>>,
    /// Our ends of the connections that have served a request.
    kept: Mutex<HashSet<SocketAddr>>,
    uri: Uri,
    /// One for each shape.
    inputs: Vec<Inputs<T>>,
    options: Options,
}

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let options = Options::parse();
    let format = options.format;
    let ran = match options.block.dtype {
        ElementType::F16 => run::<f16>(options),
        ElementType::Bf16 => run::<bf16>(options),
        ElementType::F32 => run::<f32>(options),
    };
    match ran {
        Ok(report) => {
            let summary = report.summary();
            match format {
                Format::Text => println!("{summary}"),
                Format::Json => match serde_json::to_string(&summary) {
                    Ok(json) => println!("{json}"),
                    Err(error) => eprintln!("error: {error}"),
                },
            }
            if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run<T: Element + 'static>(options: Options) -> Fallible<Report> {
    let inputs_of = |shape: &[u64; 4]| match options.resource {
        Endpoint::Attention => Inputs::<T>::attention(*shape),
        Endpoint::Block => Inputs::block(shape[0], shape[2], options.block.load()?),
    };
    let inputs = options.shape.iter().map(inputs_of).collect::<Result<_, _>>()?;
    let (server, resource) = (options.url.trim_end_matches('/'), options.resource.name());
    let uri = format!("{server}/v1/{resource}").parse()?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let sender = Arc::new(Sender { client, kept: Mutex::default(), uri, inputs, options });
    Runtime::new()?.block_on(async {
        let attack = sender.options.attack.begin(&sender.uri)?;
        if attack.is_some() {
            sleep(ATTACKED_BEFORE).await;
        }
        let mut report = send_all(&sender).await?;
        report.attack = attack.map(|attack| attack.summary());
        Ok(report)
    })
}

/// Sends requests until their number or the time is over, then waits for the last replies.
async fn send_all<T: Element + 'static>(sender: &Arc<Sender<T>>) -> Fallible<Report> {
    let begun = Instant::now();
    let end = begun + sender.options.duration;
    let free = Arc::new(Semaphore::new(usize::try_from(sender.options.concurrency)?));
    let mut due = sender.options.rate.map(|rate| interval(Duration::from_secs_f64(rate.recip())));
    let mut tasks = JoinSet::new();
    let mut report = Report::default();
    for number in 0..sender.options.requests {
        let free = Arc::clone(&free);
        let turn = async {
            match &mut due {
                Some(due) => (due.tick().await, free.try_acquire_owned().ok()),
                None => {
                    let permit = free.acquire_owned().await.ok();
                    (Instant::now(), permit)
                }
            }
        };
        let Ok((at, permit)) = timeout_at(end, turn).await else { break };
        if at >= end {
            break;
        }
        let Some(permit) = permit else {
            report.skipped += 1;
            continue;
        };
        let sender = Arc::clone(sender);
        tasks.spawn(async move { (sender.send(number, at).await, permit).0 });
        while let Some(done) = tasks.try_join_next() {
            report.outcomes.push(done?);
        }
    }
    while let Some(done) = tasks.join_next().await {
        report.outcomes.push(done?);
    }
    // Some replies are compared after that.
    let last = report.outcomes.iter().map(|outcome| outcome.ended).max();
    report.took = last.unwrap_or_else(Instant::now) - begun;
    Ok(report)
}

impl<T: Element> Sender<T> {
    async fn send(&self, number: u64, due: Instant) -> Outcome {
        let every = self.options.verify_every;
        let is_compared = every > 0 && number.is_multiple_of(every);
        let replied = timeout(self.options.timeout, self.reply(number, is_compared)).await;
        let ended = Instant::now();
        let (status, verified, waited) = match replied {
            Ok(Ok((status, body, waited))) => {
                // A reference may take seconds; other requests go on meanwhile.
                let is_correct = |body: &Bytes| {
                    let inputs = self.inputs(number);
                    block_in_place(|| inputs.is_some_and(|inputs| inputs.is_correct(number, body)))
                };
                let body = body.as_ref().filter(|_| status == StatusCode::OK);
                (Ok(status.as_u16()), body.map(is_correct), waited)
            }
            Ok(Err(error)) => (Err(error.to_string()), None, None),
            Err(_) => (Err(format!("no reply within {:?}", self.options.timeout)), None, None),
        };
        let latency = ended.saturating_duration_since(due);
        Outcome { status, latency, ended, verified, waited }
    }

    /// Those of the request with this number.
    fn inputs(&self, number: u64) -> Option<&Inputs<T>> {
        let others = self.inputs.len().saturating_sub(1);
        let turn = usize::try_from(number / 4).unwrap_or(0).checked_rem(others);
        let place = if number % 4 == 3 { turn.map_or(0, |turn| turn + 1) } else { 0 };
        self.inputs.get(place)
    }

    /// The status, the body if it is kept, and how long the server says that the request waited for a device.
    async fn reply(
        &self,
        number: u64,
        keeps: bool,
    ) -> Fallible<(StatusCode, Option<Bytes>, Option<Duration>)> {
        let body = self.inputs(number).map(|inputs| inputs.body(number)).unwrap_or_default();
        let response = self.request(body).await?;
        let status = response.status();
        let timing =
            response.headers().get("server-timing").and_then(|timing| timing.to_str().ok());
        let waited = timing.and_then(waited);
        let mut body = response.into_body();
        if keeps {
            return Ok((status, Some(body.collect().await?.to_bytes()), waited));
        }
        // Collecting copies, which costs a server on the same machine processor time.
        while let Some(frame) = body.frame().await {
            frame?;
        }
        Ok((status, None, waited))
    }

    /// The reply to a request. A server may close a kept connection while a request is on its way there. The generator
    /// sends such a request again, since no request changes the server. A connection that fails with its first request
    /// is an error.
    async fn request(&self, body: Bytes) -> Fallible<Response<Incoming>> {
        loop {
            let request = Request::post(self.uri.clone()).body(Full::new(body.clone()))?;
            match self.client.request(request).await {
                Ok(response) => {
                    self.kept.lock().extend(local_address(response.extensions()));
                    return Ok(response);
                }
                Err(error) if self.has_lost_kept(&error) => {}
                Err(error) => return Err(with_sources(&error).into()),
            }
        }
    }

    /// Whether a kept connection failed. It is kept no longer.
    fn has_lost_kept(&self, error: &ClientError) -> bool {
        let mut extensions = Extensions::new();
        if let Some(connected) = error.connect_info() {
            connected.get_extras(&mut extensions);
        }
        local_address(&extensions).is_some_and(|address| self.kept.lock().remove(&address))
    }
}

/// Our end of a connection.
fn local_address(of: &Extensions) -> Option<SocketAddr> {
    of.get::<HttpInfo>().map(HttpInfo::local_addr)
}

/// The wait of `queue;dur=1.5, batch;dur=20`, which is in milliseconds.
fn waited(timing: &str) -> Option<Duration> {
    let queue = timing.strip_prefix("queue;dur=")?.split(',').next()?;
    Duration::try_from_secs_f64(queue.parse::<f64>().ok()? / 1e3).ok()
}

/// An error and its sources, whose messages say more.
fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn shape(text: &str) -> Result<[u64; 4], String> {
    let sizes: Result<Vec<u64>, _> = text.split('x').map(str::parse).collect();
    let sizes = sizes.ok().and_then(|sizes| sizes.try_into().ok());
    sizes.ok_or_else(|| "expected four sizes such as 16x5x16x64".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1e-3..=1e6).contains(rate));
    rate.ok_or_else(|| "expected 0.001 to 1000000 requests a second".to_owned())
}

/// Until an attack is under way.
const ATTACKED_BEFORE: Duration = Duration::from_millis(500);
