//! An inference server for temporal attention in front of gridguard: `gridguard-server --help`.
//!
//! A request flows `connections -> api -> tensors -> batching -> worker -> backend`, and back. Each queue, body and wait
//! on this way has a limit.

mod api;
mod backend;
mod batching;
mod connections;
mod error;
mod options;
mod profiles;
mod tensors;
mod worker;

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use gridguard::cuda::{Compiler, device_count};
use gridguard::{Guard, catalog};
use metrics_exporter_prometheus::PrometheusBuilder;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::api::{App, router};
use crate::backend::Attention;
use crate::batching::collect;
use crate::options::Options;

/// The result of a part of the program that is not a request.
type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let log = tracing_subscriber::fmt().json().with_span_list(false).with_writer(io::stderr);
    log.with_max_level(options.log).init();
    match run(options).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            tracing::error!("the time to shut down passed before all requests were done");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Serves until a signal. Returns whether all requests were done.
async fn run(options: Options) -> Fallible<bool> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    gridguard::describe_metrics();
    // The server listens once its devices work.
    let backends = backends(&options)?;
    let profiles: Vec<_> = backends.iter().map(|backend| Arc::clone(&backend.profile)).collect();
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.map_err(|error| format!("{}: {error}", options.listen))?;
    println!("listening on http://{}", listener.local_addr()?);
    let limits = options.limits.clone();
    let (jobs, queued) = mpsc::channel(limits.in_flight.into());
    // A batch that waits for a worker can still grow: only the next one is in the channel.
    let (ready, batches) = mpsc::channel(1);
    let workers = backends.len();
    let working = worker::start(backends, &Arc::new(Mutex::new(batches)))?;
    let (drain, drained) = oneshot::channel();
    tokio::spawn(collect(queued, ready, limits.clone(), drained));
    let (kept, kept_small) = (profiles.clone(), metrics.clone());
    // A thread, since the files may be far away.
    thread::spawn(move || {
        loop {
            kept.iter().for_each(|profile| profile.keep_up());
            kept_small.run_upkeep();
            thread::sleep(options.profile_every.max(Duration::from_millis(1)));
        }
    });
    let free = Arc::new(Semaphore::new(limits.in_flight.into()));
    let app = App { limits: limits.clone(), jobs, workers, working, metrics, free };
    let stop = async {
        tokio::select! { _ = terminate.recv() => {}, _ = ctrl_c() => {} }
        tracing::info!("shutting down");
        // Ends also if no worker is left.
        let _ = drain.send(());
    };
    let is_done = connections::serve(listener, router(app), &limits, stop).await;
    profiles.iter().for_each(|profile| profile.keep_up());
    Ok(is_done)
}

fn backends(options: &Options) -> Fallible<Vec<Attention>> {
    if options.host {
        let guard = Guard::host(catalog::limits(&options.gpu)?);
        return Ok(vec![Attention::host(guard, options)]);
    }
    let count = device_count().map_err(|reason| format!("{reason}; {WITHOUT_DEVICE}"))?;
    Compiler::find()?;
    let all = (0..count).filter(|_| options.devices.is_empty());
    let ordinals = options.devices.iter().copied().chain(all);
    let found = ordinals.map(|ordinal| Attention::cuda(ordinal, options));
    Ok(found.collect::<Fallible<Vec<_>>>()?.into_iter().flatten().collect())
}

const WITHOUT_DEVICE: &str = "see `gridguard doctor`, or compute with `--host`";
