//! The inference server: `gridguard-server --help`.

use std::error::Error;
use std::num::NonZeroU64;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use clap::Parser;
use gridguard::cuda::{Compiler, CublasLt, device_count};
use gridguard::{Guard, catalog};
use gridguard_server::admission::Bodies;
use gridguard_server::api::App;
use gridguard_server::block::Block;
use gridguard_server::device::{Cuda, Shared};
use gridguard_server::health::Health;
use gridguard_server::host::Host;
use gridguard_server::options::{Devices, HOST_MEMORY, Options};
use gridguard_server::queue::{Queue, QueueLimits};
use gridguard_server::server::{Drained, serve};
use gridguard_server::telemetry;
use gridguard_server::tuning::Profiles;
use gridguard_server::worker::{self, Factory};
use metrics_exporter_prometheus::PrometheusHandle;
use mimalloc::MiMalloc;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::interval;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let options = Options::parse();
    telemetry::log(options.log);
    match run(options) {
        Ok(Drained::Whole) => ExitCode::SUCCESS,
        Ok(Drained::Partly { requests }) => {
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

fn run(options: Options) -> Result<Drained, Box<dyn Error + Send + Sync>> {
    let metrics = telemetry::metrics()?;
    let block = Arc::new(options.block.load()?);
    let profiles = Arc::new(Profiles::new(options.profile.clone()));
    let backends = backends(&options, &block, &profiles)?;
    let health = Arc::new(Health::new(backends.len()));
    let limits = options.limits.clone();
    let queue = QueueLimits { requests: limits.queue, wait: limits.batch_wait };
    let app = Arc::new(App {
        block,
        bodies: Bodies::new(limits.bodies()),
        queue: Arc::new(Queue::new(queue)),
        health: Arc::clone(&health),
        max_frames: options.max_frames,
        batch_bytes: limits.batch_bytes,
        in_flight: watch::Sender::new(0),
        metrics: Some(metrics.clone()),
    });
    let runtime = Runtime::new()?;
    let drained = runtime.block_on(async {
        // Before the address is printed: from then on signals are handled.
        let stop = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let reload = signal(SignalKind::hangup())?;
        let listener = TcpListener::bind(options.listen).await;
        let listener = listener.map_err(|error| format!("{}: {error}", options.listen))?;
        println!("listening on http://{}", listener.local_addr()?);
        let workers = worker::start(&app.queue, &health, backends)?;
        tokio::spawn(upkeep(metrics, reload, Arc::clone(&profiles), options.clone()));
        let serving = serve(listener, Arc::clone(&app), &limits, stopped(stop));
        let mut serving = pin!(serving);
        let drained = tokio::select! {
            drained = &mut serving => drained,
            started = health.started() => {
                // A device that cannot be used from the start is a mistake of the operator.
                started?;
                serving.await
            }
        };
        app.queue.close();
        for worker in workers {
            // One that is stuck in a driver would keep the process from ending.
            if drained == Drained::Whole {
                spawn_blocking(move || worker.join()).await?.map_err(|_| "a worker panicked")?;
            }
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(drained)
    })?;
    runtime.shutdown_background();
    if let Some(path) = &options.misses {
        profiles.write_misses(path)?;
    }
    tracing::info!("ended");
    Ok(drained)
}

/// Makes the backends on their threads.
fn backends(
    options: &Options,
    block: &Arc<Block>,
    profiles: &Arc<Profiles>,
) -> Result<Vec<Factory>, Box<dyn Error + Send + Sync>> {
    let usable = || -> Result<usize, Box<dyn Error + Send + Sync>> {
        let devices = device_count()?;
        Compiler::find()?;
        CublasLt::find()?;
        if devices == 0 { Err("the driver has no device".into()) } else { Ok(devices) }
    };
    let ordinals: Vec<usize> = match &options.devices {
        Devices::Ordinals(ordinals) => ordinals.clone(),
        Devices::All => (0..usable()?).collect(),
        Devices::Host => Vec::new(),
        Devices::Auto => match usable() {
            Ok(devices) => (0..devices).collect(),
            Err(reason) => {
                tracing::warn!(%reason, "no GPU is used: the host computes");
                Vec::new()
            }
        },
    };
    if ordinals.is_empty() {
        let guard = Guard::host(Arc::clone(&catalog::gpu(&options.gpu)?.limits));
        let (memory, block) = (options.memory.unwrap_or(HOST_MEMORY), Arc::clone(block));
        let profiles = Arc::clone(profiles);
        return Ok(vec![Box::new(move || {
            let tuning = profiles.open(&guard);
            Ok(Box::new(Host::new(guard, tuning, block, memory)))
        })]);
    }
    let in_flight = NonZeroU64::from(options.in_flight);
    let on_device = |ordinal: usize| {
        let memory = (options.memory, in_flight);
        let (block, profiles) = (Arc::clone(block), Arc::clone(profiles));
        // By the first worker on the device.
        let shared =
            LazyLock::new(move || match Shared::open(ordinal, memory, &profiles, &block) {
                Ok(shared) => Ok(Arc::new(shared)),
                Err(error) => Err(error.to_string()),
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

/// Loads profiles again on SIGHUP, writes misses, and keeps the metrics small.
async fn upkeep(
    metrics: PrometheusHandle,
    mut reload: Signal,
    profiles: Arc<Profiles>,
    options: Options,
) {
    let mut misses = interval(options.misses_every.max(SHORTEST));
    let mut small = interval(METRICS_EVERY);
    loop {
        tokio::select! {
            _ = reload.recv() => {
                let profiles = Arc::clone(&profiles);
                let _ = spawn_blocking(move || profiles.reload()).await;
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

/// Histograms keep every value until then, or until they are read.
const METRICS_EVERY: Duration = Duration::from_secs(5);
/// An interval of zero is none.
const SHORTEST: Duration = Duration::from_millis(10);
