//! The resources: attention, the block, and what operators ask for.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use crate::admission::{Bodies, Footprint, Received, footprint};
use crate::block::Block;
use crate::error::ServeError;
use crate::health::Health;
use crate::queue::{Computed, Pending, Queue};
use crate::tensors::Request;

/// What requests share.
#[derive(Debug)]
pub struct App {
    /// The block that is served.
    pub block: Arc<Block>,
    /// Bodies in memory.
    pub bodies: Bodies,
    /// Requests that wait for a device.
    pub queue: Arc<Queue>,
    /// Whether requests are taken.
    pub health: Arc<Health>,
    /// The most frames of a request.
    pub max_frames: u64,
    /// The most bytes of tensors in a batch.
    pub batch_bytes: u64,
    /// Requests for computation that are being served.
    pub in_flight: watch::Sender<u64>,
    /// Metrics as text, if the process records them.
    pub metrics: Option<PrometheusHandle>,
}

/// The routes.
pub fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/attention", post(attention))
        .route("/v1/block", post(block))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(async || ServeError::NotFound)
        .method_not_allowed_fallback(async || ServeError::Method)
        .with_state(app)
}

async fn attention(State(app): State<Arc<App>>, body: Body) -> Response {
    let parse = |app: &App, body: &Bytes| Request::attention(body, app.max_frames);
    serve(&app, "attention", body, parse).await
}

async fn block(State(app): State<Arc<App>>, body: Body) -> Response {
    let parse = |app: &App, body: &Bytes| Request::block(body, &app.block, app.max_frames);
    serve(&app, "block", body, parse).await
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    app.bodies.report();
    let text = app.metrics.as_ref().map(PrometheusHandle::render).unwrap_or_default();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn healthz(State(app): State<Arc<App>>) -> Response {
    Json(json!({ "alive": true, "workers": app.health.report() })).into_response()
}

async fn readyz(State(app): State<Arc<App>>) -> Response {
    let not_ready = app.health.not_ready();
    let status = if not_ready.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let reason = not_ready.map(|reason| reason.to_string());
    let ready = json!({
        "ready": reason.is_none(),
        "reason": reason,
        "workers": app.health.report(),
    });
    (status, Json(ready)).into_response()
}

async fn serve(
    app: &Arc<App>,
    endpoint: &'static str,
    body: Body,
    parse: impl Fn(&App, &Bytes) -> Result<Request, ServeError>,
) -> Response {
    let begun = Instant::now();
    // Before the check below, so that a server that drains waits for all requests that passed it.
    let in_flight = InFlight::begin(Arc::clone(app));
    let served = match app.health.refusal() {
        Some(refusal) => {
            // A server that drains does not wait for it.
            drop(in_flight);
            app.bodies.discard(body).await;
            Err(refusal)
        }
        None => compute(app, body, parse).await.map(|computed| (computed, in_flight)),
    };
    let response = served.map_or_else(IntoResponse::into_response, |(computed, in_flight)| {
        let Computed { body, permit } = computed;
        let reply = Reply { body, _permit: permit, _in_flight: in_flight };
        let body = Body::from(Bytes::from_owner(reply));
        let mut response = ([(CONTENT_TYPE, CONTENT)], body).into_response();
        if app.health.refusal() == Some(ServeError::Draining) {
            response.headers_mut().insert(CONNECTION, CLOSE);
        }
        response
    });
    let status = response.status().as_str().to_owned();
    counter!("gridguard_server_requests_total", "endpoint" => endpoint, "status" => status)
        .increment(1);
    histogram!("gridguard_server_request_seconds", "endpoint" => endpoint).record(begun.elapsed());
    response
}

/// Reads, checks and queues a request, and waits for its reply.
async fn compute(
    app: &App,
    body: Body,
    parse: impl Fn(&App, &Bytes) -> Result<Request, ServeError>,
) -> Result<Computed, ServeError> {
    let Received { bytes, permit } = app.bodies.read(body).await?;
    let request = parse(app, &bytes)?;
    drop(bytes);
    if request.items == 0 {
        return Ok(Computed { body: request.reply(&[])?, permit });
    }
    let available = app.health.memory();
    let Footprint { bytes, batch_bytes } = footprint(&request, &app.block, available)?;
    let (reply, computed) = oneshot::channel();
    let batch_bytes = batch_bytes.min(app.batch_bytes);
    app.queue.push(Pending { request, bytes, batch_bytes, permit, reply })?;
    computed.await.unwrap_or_else(|_| {
        let (device, reason) = ("its device".to_owned(), "the worker ended".to_owned());
        Err(ServeError::DeviceFailed { device, reason })
    })
}

/// A reply that is in flight, and holds its share of the memory of bodies, until it is sent.
struct Reply {
    body: Vec<u8>,
    _permit: OwnedSemaphorePermit,
    _in_flight: InFlight,
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Counts a request until its reply is sent or its client leaves.
struct InFlight(Arc<App>);

impl InFlight {
    fn begin(app: Arc<App>) -> Self {
        app.in_flight.send_modify(|count| *count += 1);
        gauge!("gridguard_server_in_flight").increment(1);
        Self(app)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.send_modify(|count| *count = count.saturating_sub(1));
        gauge!("gridguard_server_in_flight").decrement(1);
    }
}

const CLOSE: HeaderValue = HeaderValue::from_static("close");
const CONTENT: &str = "application/octet-stream";
