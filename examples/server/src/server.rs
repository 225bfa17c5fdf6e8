//! Connections: accepted, limited in number and time, and ended in order.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_io_timeout::TimeoutStream;

use crate::api::{App, routes};
use crate::options::Limits;

/// Whether all accepted requests were done when the server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All of them.
    Whole,
    /// The time limit for it passed.
    Partly {
        /// Requests that were being served.
        requests: u64,
    },
}

/// Serves until `shutdown`. Then new requests are refused, those that were accepted are done, replies are
/// sent, and connections closed, all within the time limit for it.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    limits: &Limits,
    shutdown: impl Future<Output = ()>,
) -> Drained {
    let router = routes(Arc::clone(&app));
    let connections = Arc::new(Semaphore::new(usize::try_from(limits.connections).unwrap_or(1)));
    let graceful = GracefulShutdown::new();
    let accepting = async {
        loop {
            // Never closed.
            let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => connection(stream, permit, limits, router.clone(), &graceful),
                // Out of descriptors, for instance: those of other connections become free.
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection");
                    sleep(RETRY_ACCEPT).await;
                }
            }
        }
    };
    let draining = async {
        shutdown.await;
        tracing::info!(requests = *app.in_flight.borrow(), "shutting down");
        app.health.drain();
        app.queue.drain();
        let deadline = Instant::now() + limits.drain;
        let mut in_flight = app.in_flight.subscribe();
        // The sender is in `app`.
        let _ = timeout_at(deadline, in_flight.wait_for(|count| *count == 0)).await;
        deadline
    };
    // Connections are accepted meanwhile, so that new requests get a reply that says why.
    let deadline = tokio::select! {
        deadline = draining => deadline,
        () = accepting => Instant::now(),
    };
    drop(listener);
    // What is left are connections without a request, and replies that are being sent.
    let _ = timeout_at(deadline, graceful.shutdown()).await;
    match *app.in_flight.borrow() {
        0 => Drained::Whole,
        requests => Drained::Partly { requests },
    }
}

fn connection(
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    limits: &Limits,
    router: Router,
    graceful: &GracefulShutdown,
) {
    // A batch is a single write, and its client waits for the end of it.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router));
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended");
        }
        drop(permit);
    });
}

/// Between two tries after a failure.
const RETRY_ACCEPT: Duration = Duration::from_millis(50);
