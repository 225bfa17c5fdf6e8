//! The inference server: `gridguard-server --help`.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use clap::Parser;
use gridguard::cuda::{Compiler, CublasLt, device_count};
use gridguard::{Guard, catalog};
use gridguard_server::admission::Admission;
use gridguard_server::api::App;
use gridguard_server::block::Block;
use gridguard_server::device::{Cuda, Shared};
use gridguard_server::error::Fallible;
use gridguard_server::health::Health;
use gridguard_server::host::Host;
use gridguard_server::options::{Devices, HOST_MEMORY, Options};
use gridguard_server::queue::{Phase, Queue};
use gridguard_server::server::{serve, serve_admin};
use gridguard_server::telemetry;
use gridguard_server::tuning::Profiles;
use gridguard_server::worker::{self, Factory};
use metrics_exporter_prometheus::PrometheusHandle;
use mimalloc::MiMalloc;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout_at};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let options = Options::parse();
    telemetry::log(options.log);
    match run(options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(requests) => {
            tracing::error!(requests, "the time to shut down passed before they were done");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!(%error, "the server cannot run");
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: Options) -> Fallible<u64> {
    raise_descriptors();
    let metrics = telemetry::metrics()?;
    let block = Arc::new(options.block.load()?);
    let profiles = Arc::new(Profiles::new(options.profile.clone()));
    let backends = backends(&options, &block, &profiles)?;
    let health = Arc::new(Health::new(backends.len()));
    let limits = options.limits.clone();
    let app = Arc::new(App {
        block,
        admission: Admission::new(limits.clone()),
        queue: Arc::new(Queue::new(limits.batch_wait)),
        limits,
        health: Arc::clone(&health),
        in_flight: watch::Sender::new(0),
        metrics: Some(metrics.clone()),
    });
    let runtime = Runtime::new()?;
    let unfinished = runtime.block_on(async {
        // Before the address is printed: from then on signals are handled.
        let stop = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let reload = signal(SignalKind::hangup())?;
        let [listener, admin] = [bind(options.listen).await?, bind(options.admin).await?];
        println!("listening on http://{}", listener.local_addr()?);
        println!("health and metrics on http://{}", admin.local_addr()?);
        tokio::spawn(serve_admin(admin, Arc::clone(&app)));
        let workers = worker::start(&app.queue, &health, backends)?;
        tokio::spawn(upkeep(metrics, reload, Arc::clone(&profiles), options.clone()));
        let mut serving = pin!(serve(listener, Arc::clone(&app), stopped(stop)));
        let (unfinished, deadline) = tokio::select! {
            ended = &mut serving => ended,
            started = health.started() => {
                // A device that cannot be used from the start is a mistake of the operator.
                started?;
                serving.await
            }
        };
        app.queue.enter(Phase::Closed);
        // A worker may compute for clients that left, or be stuck in a driver.
        let joined =
            spawn_blocking(move || workers.into_iter().for_each(|worker| drop(worker.join())));
        if timeout_at(deadline, joined).await.is_err() {
            tracing::warn!("a worker still computes, for nobody");
        }
        Fallible::Ok(unfinished)
    })?;
    runtime.shutdown_background();
    if let Some(path) = &options.misses {
        profiles.write_misses(path)?;
    }
    tracing::info!("ended");
    Ok(unfinished)
}

/// Listens on an address, and says so if anyone can reach it.
async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| format!("{address}: {error}"))?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "other machines can reach this address, and there is no authentication");
    }
    Ok(listener)
}

/// As many connections as the system allows, since many systems begin with fewer than a server's clients need.
fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit of open files stays");
    }
}

/// Makes the backends on their threads.
fn backends(
    options: &Options,
    block: &Arc<Block>,
    profiles: &Arc<Profiles>,
) -> Fallible<Vec<Factory>> {
    let all = || -> Fallible<Vec<usize>> {
        let devices = device_count().map_err(|reason| format!("{reason}; {WITHOUT_DEVICE}"))?;
        if devices == 0 {
            return Err(format!("the driver has no device; {WITHOUT_DEVICE}").into());
        }
        Compiler::find()?;
        CublasLt::find()?;
        Ok((0..devices).collect())
    };
    let ordinals = match &options.devices {
        Devices::Ordinals(ordinals) => all().map(|_| ordinals.clone())?,
        Devices::All => all()?,
        Devices::Host => Vec::new(),
        Devices::Auto => all().unwrap_or_else(|reason| {
            tracing::warn!(%reason, "no GPU is used: the host computes");
            Vec::new()
        }),
    };
    if ordinals.is_empty() {
        let limits = catalog::limits(&options.gpu)?;
        let (memory, block) = (options.memory.unwrap_or(HOST_MEMORY), Arc::clone(block));
        let profiles = Arc::clone(profiles);
        // Opened once, also if the backend is made again.
        let mut tuning = None;
        return Ok(vec![Box::new(move || {
            let guard = Guard::host(Arc::clone(&limits));
            let tuning = tuning.get_or_insert_with(|| profiles.open(&guard));
            Ok(Box::new(Host::new(guard, Arc::clone(tuning), Arc::clone(&block), memory)?))
        })]);
    }
    let in_flight = NonZeroU64::from(options.in_flight);
    let on_device = |ordinal: usize| {
        let memory = (options.memory, in_flight);
        let (block, profiles) = (Arc::clone(block), Arc::clone(profiles));
        // By the first worker on the device.
        let shared = LazyLock::new(move || {
            let shared = Shared::open(ordinal, memory, &profiles, &block);
            shared.map(Arc::new).map_err(|error| error.to_string())
        });
        let shared = Arc::new(shared);
        (0..in_flight.get()).map(move |_| -> Factory {
            let shared = Arc::clone(&shared);
            Box::new(move || Ok(Box::new(Cuda::new((**shared).clone()?)?)))
        })
    };
    Ok(ordinals.into_iter().flat_map(on_device).collect())
}

/// Waits for SIGTERM or SIGINT.
async fn stopped([mut terminate, mut interrupt]: [Signal; 2]) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Loads profiles again on SIGHUP and if files change, writes misses, and keeps the metrics small.
async fn upkeep(
    metrics: PrometheusHandle,
    mut reload: Signal,
    profiles: Arc<Profiles>,
    options: Options,
) {
    let mut misses = interval(options.misses_every.max(SHORTEST));
    let mut small = interval(METRICS_EVERY);
    let mut changes = interval(options.profile_every.max(SHORTEST));
    loop {
        tokio::select! {
            _ = reload.recv() => {
                let profiles = Arc::clone(&profiles);
                let _ = spawn_blocking(move || profiles.reload()).await;
            }
            _ = changes.tick() => {
                let profiles = Arc::clone(&profiles);
                let _ = spawn_blocking(move || profiles.reload_changed()).await;
            }
            _ = misses.tick() => {
                let Some(path) = options.misses.clone() else { continue };
                let profiles = Arc::clone(&profiles);
                let written = spawn_blocking(move || profiles.write_misses(&path)).await;
                if let Ok(Err(error)) = written {
                    tracing::error!(%error, "misses not written");
                }
            }
            _ = small.tick() => metrics.run_upkeep(),
        }
    }
}

const WITHOUT_DEVICE: &str =
    "`gridguard doctor` explains how to mend it, and `--devices host` needs no GPU";
/// Histograms keep every value until then, or until they are read.
const METRICS_EVERY: Duration = Duration::from_secs(5);
/// An interval of zero is none.
const SHORTEST: Duration = Duration::from_millis(10);
