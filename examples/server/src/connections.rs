//! Connections: limited in number and time, and ended in order.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::options::Limits;

/// Serves until `stop`. Then it takes no more connections, and finishes the requests that it has. Returns whether all
/// were done within [`Limits::drain`].
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: &Limits,
    stop: impl Future<Output = ()>,
) -> bool {
    // `axum::serve` has no limit for connections, nor for the time that headers take.
    let mut server = Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
    let graceful = GracefulShutdown::new();
    let free = Arc::new(Semaphore::new(limits.connections.into()));
    let mut stop = pin!(stop);
    loop {
        let (stream, permit) = tokio::select! {
            accepted = accept(&listener, &free, limits.write_timeout) => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, for instance: those of other connections become free.
                    tracing::warn!(%error, "accepting a connection");
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = server.serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection.into_owned());
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error, "a connection ended");
            }
            drop(permit);
        });
    }
    drop(listener);
    timeout(limits.drain, graceful.shutdown()).await.is_ok()
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    free: &Arc<Semaphore>,
    unread: Duration,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(free).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // The reply to a batch is a single write, and its client waits for the end of it.
    stream.set_nodelay(true)?;
    // A client that reads nothing of a reply.
    let unread = u32::try_from(unread.as_millis()).unwrap_or(u32::MAX);
    set_tcp_user_timeout(&stream, unread)?;
    Ok((stream, permit))
}
