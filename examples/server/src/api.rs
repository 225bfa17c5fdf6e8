//! The resources: attention, the block, and what operators ask for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::admission::{Admission, footprint};
use crate::block::Block;
use crate::error::{DeviceFailure, ServeError, Served};
use crate::health::Health;
use crate::options::Limits;
use crate::queue::{Computed, Pending, Queue, Waiting};
use crate::share::{Peer, Share};
use crate::tensors::{Endpoint, Request, wide};

/// What requests share.
#[derive(Debug)]
pub struct App {
    /// The block that is served.
    pub block: Arc<Block>,
    /// What requests and connections may take of the server.
    pub limits: Limits,
    /// What they take.
    pub admission: Admission,
    /// Requests that wait for a device.
    pub queue: Arc<Queue>,
    /// Whether requests are taken.
    pub health: Arc<Health>,
    /// Requests for computation that are being served.
    pub in_flight: watch::Sender<u64>,
    /// Metrics as text, if the process records them.
    pub metrics: Option<PrometheusHandle>,
}

/// A connection, as its requests know it.
#[derive(Clone, Debug)]
pub struct Client {
    /// Whose it is.
    pub peer: Peer,
    /// Until when the reply that is being sent must be read; then the connection is closed.
    pub deadline: Arc<watch::Sender<Option<Instant>>>,
}

/// The resources for clients; each request has a [`Client`].
pub fn routes(app: Arc<App>) -> Router {
    let attention: Parse = |app, body| Request::attention(body, app.limits.max_frames);
    let block: Parse = |app, body| Request::block(body, &app.block, app.limits.max_frames);
    let resource = |endpoint, parse| {
        post(async move |State(app), Extension(client), body| {
            serve(app, client, endpoint, body, parse).await
        })
    };
    let routes = Router::new()
        .route("/v1/attention", resource(Endpoint::Attention, attention))
        .route("/v1/block", resource(Endpoint::Block, block));
    with_fallbacks(routes).with_state(app)
}

/// The resources for operators.
pub fn admin_routes(app: Arc<App>) -> Router {
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz));
    with_fallbacks(routes).with_state(app)
}

fn with_fallbacks(routes: Router<Arc<App>>) -> Router<Arc<App>> {
    routes
        .fallback(async || ServeError::NotFound)
        .method_not_allowed_fallback(async || ServeError::MethodNotAllowed)
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    app.admission.report();
    let text = app.metrics.as_ref().map(PrometheusHandle::render).unwrap_or_default();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn healthz(State(app): State<Arc<App>>) -> impl IntoResponse {
    let alive = app.health.has_workers();
    state(alive, json!({ "alive": alive, "workers": app.health.report() }))
}

async fn readyz(State(app): State<Arc<App>>) -> impl IntoResponse {
    let reason = app.health.not_ready().map(|reason| reason.to_string());
    let (ready, workers) = (reason.is_none(), app.health.report());
    state(ready, json!({ "ready": ready, "reason": reason, "workers": workers }))
}

fn state(is_good: bool, report: Value) -> impl IntoResponse {
    let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report))
}

/// Makes a request of a body.
type Parse = fn(&App, &Bytes) -> Served<Request>;

async fn serve(
    app: Arc<App>,
    client: Client,
    endpoint: Endpoint,
    body: Body,
    parse: Parse,
) -> Response {
    let begun = Instant::now();
    // Before the check below, so that a server that drains waits for all requests that passed it.
    let in_flight = InFlight::begin(Arc::clone(&app));
    let served = match app.health.refusal() {
        Some(refusal) => {
            // A server that drains does not wait for it.
            drop(in_flight);
            app.admission.discard(body).await;
            Err(refusal)
        }
        None => compute(&app, client.peer, body, parse).await.map(|computed| (computed, in_flight)),
    };
    let response = served.map_or_else(IntoResponse::into_response, |(computed, in_flight)| {
        let Computed { body, share, waited, took } = computed;
        let until = Instant::now() + app.limits.to_read(wide(body.len()));
        client.deadline.send_replace(Some(until));
        let reply = Reply { body, client, _share: share, _in_flight: in_flight };
        let body = Body::from(Bytes::from_owner(reply));
        let mut response = ([(CONTENT_TYPE, CONTENT)], body).into_response();
        if let Ok(timing) = timing(waited, took).parse() {
            response.headers_mut().insert(SERVER_TIMING, timing);
        }
        if app.health.refusal() == Some(ServeError::ShuttingDown) {
            response.headers_mut().insert(CONNECTION, CLOSE);
        }
        response
    });
    let (endpoint, status) = (endpoint.name(), response.status().as_str().to_owned());
    counter!("gridguard_server_requests_total", "endpoint" => endpoint, "status" => status)
        .increment(1);
    histogram!("gridguard_server_request_seconds", "endpoint" => endpoint).record(begun.elapsed());
    response
}

/// Reads, checks and queues a request, and waits for its reply.
async fn compute(app: &Arc<App>, peer: Peer, body: Body, parse: Parse) -> Served<Computed> {
    let (bytes, body) = app.admission.read(peer, body).await?;
    let shared = Arc::clone(app);
    let check = move || {
        let request = parse(&shared, &bytes)?;
        let capacity = shared.health.capacity()?;
        let footprint = footprint(&request, &shared.block, capacity.memory)?;
        Ok((request, capacity, footprint, body))
    };
    let (request, capacity, mut footprint, body) = app.admission.in_background(check).await?;
    let work = app.admission.work(peer, &request, capacity)?;
    let share = app.admission.replies.take(peer, wide(request.output_bytes()))?;
    if request.items == 0 {
        let (waited, took) = (Duration::ZERO, Duration::ZERO);
        return Ok(Computed { body: request.reply(&[])?, share, waited, took });
    }
    let place = app.admission.queue.take(peer, 1)?;
    footprint.batch_bytes = footprint.batch_bytes.min(app.limits.batch_bytes);
    let (reply, computed) = oneshot::channel();
    let waiting = Waiting { reply, share, until_done: [body, work], accepted: Instant::now() };
    // Also dropped when the client leaves.
    let _ticket = app.queue.push(Pending { request, footprint, place, waiting })?;
    computed.await.unwrap_or_else(|_| {
        let (device, reason) = ("its device".to_owned(), "the worker ended".to_owned());
        Err(DeviceFailure { device, reason }.into())
    })
}

/// How long a request waited and its batch ran, as browsers and other tools read it.
fn timing(waited: Duration, took: Duration) -> String {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    format!("queue;dur={:.3}, batch;dur={:.3}", milliseconds(waited), milliseconds(took))
}

/// A reply that is in flight, and holds its share of the memory of replies, until it is sent.
struct Reply {
    body: Vec<u8>,
    client: Client,
    _share: Share,
    _in_flight: InFlight,
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.client.deadline.send_replace(None);
    }
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
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
const CONTENT: &str = "application/octet-stream";
