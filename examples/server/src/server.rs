//! Connections: accepted, limited in number and time, and ended in order.

use std::future::pending;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use metrics::counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_io_timeout::TimeoutStream;

use crate::api::{App, Client, admin_routes, routes};
use crate::queue::Phase;
use crate::share::{Peer, Share};

/// Serves clients until `shutdown`. Then it refuses new requests, runs the accepted ones, sends their replies and closes
/// connections, within the time limit of [`Limits::drain`](crate::options::Limits::drain). Returns the number of
/// requests that it could not finish, and the end of that time.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    shutdown: impl Future<Output = ()>,
) -> (u64, Instant) {
    let router = routes(Arc::clone(&app));
    let graceful = GracefulShutdown::new();
    let accepting = async {
        loop {
            let (stream, from) = accept(&listener).await;
            match app.admission.connections.take(from.ip().into(), 1) {
                Ok(share) => {
                    connect(stream, share, from.ip().into(), &app, router.clone(), &graceful);
                }
                Err(_) => {
                    counter!("gridguard_server_connections_refused_total").increment(1);
                    // As far as it goes without waiting.
                    let _ = stream.try_write(REFUSED);
                }
            }
        }
    };
    let draining = async {
        shutdown.await;
        tracing::info!(requests = *app.in_flight.borrow(), "shutting down");
        app.health.drain();
        app.queue.enter(Phase::Draining);
        let deadline = Instant::now() + app.limits.drain;
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
    (*app.in_flight.borrow(), deadline)
}

/// Serves health and metrics for as long as the process runs. Clients that only connect lose their connection soon, so
/// that others find room.
pub async fn serve_admin(listener: TcpListener, app: Arc<App>) {
    let connections = Arc::new(Semaphore::new(ADMIN_CONNECTIONS));
    let router = admin_routes(Arc::clone(&app));
    loop {
        // Never closed.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let (stream, _) = accept(&listener).await;
        let connection = connection(stream, [ADMIN_TIME; 2], router.clone());
        tokio::spawn(async move {
            let _ = connection.await;
            drop(permit);
        });
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // Out of descriptors, for instance: those of other connections become free.
            Err(error) => {
                tracing::warn!(%error, "accepting a connection");
                sleep(RETRY_ACCEPT).await;
            }
        }
    }
}

type LimitedStream = TokioIo<Pin<Box<TimeoutStream<TcpStream>>>>;

/// A connection with time limits for the headers of a request and for each write.
fn connection(
    stream: TcpStream,
    [headers, write]: [Duration; 2],
    router: Router,
) -> http1::Connection<LimitedStream, TowerToHyperService<Router>> {
    // A batch is a single write, and its client waits for the end of it.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(write));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(headers)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router))
}

/// Serves a connection on a task of its own.
fn connect(
    stream: TcpStream,
    share: Share,
    peer: Peer,
    app: &App,
    router: Router,
    graceful: &GracefulShutdown,
) {
    let client = Client { peer, deadline: Arc::new(watch::Sender::new(None)) };
    let mut deadline = client.deadline.subscribe();
    let limits = [app.limits.header_timeout, app.limits.write_timeout];
    let connection = connection(stream, limits, router.layer(Extension(client)));
    let late = async move {
        loop {
            let until = deadline.borrow_and_update().map_or_else(far_future, Instant::from_std);
            match timeout_at(until, deadline.changed()).await {
                Ok(Ok(())) => {}
                // No request comes any more: the connection ends by itself.
                Ok(Err(_)) => return pending().await,
                // Before the connection is closed, so that its client finds it counted.
                Err(_) => {
                    counter!("gridguard_server_late_readers_total").increment(1);
                    tracing::debug!("a client read its reply too slowly");
                    return;
                }
            }
        }
    };
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        tokio::select! {
            // A reply that is late may also exceed the time limit of a write.
            biased;
            () = late => {}
            ended = connection => if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended");
            },
        }
        drop(share);
    });
}

/// No client keeps a connection for a year.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(366 * 24 * 3600)
}

/// Between two tries after a failure.
const RETRY_ACCEPT: Duration = Duration::from_millis(50);
/// Memory of a connection beside its body and its reply, and the most bytes of a request's headers.
const BUFFER_BYTES: usize = 64 << 10;
/// More than the tools of an operator have.
const ADMIN_CONNECTIONS: usize = 64;
/// For the headers of a request for health or metrics, and for each write of the reply.
const ADMIN_TIME: Duration = Duration::from_secs(5);
const REFUSED: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\n\
    Content-Type: application/json\r\nContent-Length: 92\r\n\r\n\
    {\"error\":{\"code\":\"connections_full\",\"message\":\"too many connections are open: retry later\"}}";
