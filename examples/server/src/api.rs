//! The resources: attention, and what operators ask for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::error_handling::HandleErrorLayer;
use axum::extract::{DefaultBodyLimit, FromRequest, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{BoxError, Json, Router};
use futures_util::stream;
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::error::Overloaded;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::TraceLayer;

use crate::batching::{Computed, Job};
use crate::error::{PANICKED, ServeError, Served};
use crate::options::Limits;
use crate::tensors;
use crate::worker::Working;

/// What requests share.
pub(crate) struct App {
    pub(crate) limits: Limits,
    /// To the batches.
    pub(crate) jobs: mpsc::Sender<Job>,
    pub(crate) workers: usize,
    pub(crate) working: Working,
    pub(crate) metrics: PrometheusHandle,
    /// Places for requests.
    pub(crate) free: Arc<Semaphore>,
}

pub(crate) fn router(app: App) -> Router {
    let Limits { in_flight, timeout, max_body, .. } = app.limits;
    let refused = move |error: BoxError| async move {
        if error.is::<Overloaded>() {
            let message = format!("{in_flight} requests are in flight: retry later");
            return ServeError::new(503, "overloaded", message);
        }
        ServeError::new(503, "timed_out", format!("the request was not done within {timeout:?}"))
    };
    let layers = ServiceBuilder::new()
        .layer(from_fn(count))
        .layer(HandleErrorLayer::new(refused))
        .load_shed()
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&app.free)))
        .timeout(timeout)
        .layer(DefaultBodyLimit::max(max_body));
    let compute = Router::new().route("/v1/attention", post(attention)).route_layer(layers);
    let operate = Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .route("/ready", get(ready));
    // Without load shedding: operators see an overloaded server.
    compute
        .merge(operate)
        .fallback(async || {
            let message = "there is no such resource: POST /v1/attention";
            ServeError::new(404, "not_found", message)
        })
        .method_not_allowed_fallback(async || {
            let message = "the resource does not take this method";
            ServeError::new(405, "method_not_allowed", message)
        })
        .layer(CatchPanicLayer::custom(|_| ServeError::failed(PANICKED).into_response()))
        .layer(TraceLayer::new_for_http().on_failure(()))
        .with_state(Arc::new(app))
}

async fn attention(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Served<Response> {
    // A whole request runs by itself as a single launch, or the reply says why it cannot.
    let is_whole = match query.as_deref() {
        None => false,
        Some("split=never") => true,
        Some(_) => return Err(ServeError::new(400, "wrong_option", "expected split=never")),
    };
    let Limits { max_body, body_timeout, max_frames, .. } = app.limits;
    let too_large = || {
        let message = format!("the body has more than {max_body} bytes");
        ServeError::new(413, "body_too_large", message)
    };
    if usize::try_from(request.body().size_hint().lower()).is_ok_and(|declared| declared > max_body)
    {
        return Err(too_large());
    }
    let body = timeout(body_timeout, Bytes::from_request(request, &())).await.map_err(|_| {
        let message = format!("the body did not arrive within {body_timeout:?}");
        ServeError::new(408, "body_timeout", message)
    })?;
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => ServeError::new(400, "body_broken", rejection.body_text()),
    })?;
    let request = tensors::Request::read(&body, max_frames)?;
    if request.items == 0 {
        let computed = Computed { body: request.reply(&[])?, requests: 1, launches: 0 };
        return Ok(reply(computed, &app.limits));
    }
    let (sender, computed) = oneshot::channel();
    let job = Job { request, is_whole, accepted: Instant::now(), reply: sender };
    let gone = || ServeError::new(503, "device_failed", "no device works any more");
    app.jobs.send(job).await.map_err(|_| gone())?;
    let computed = computed.await.map_err(|_| gone())??;
    Ok(reply(computed, &app.limits))
}

fn reply(computed: Computed, limits: &Limits) -> Response {
    let Computed { body, requests, launches } = computed;
    // A part is asked for once the client has read most of the parts before it.
    let (length, until) = (body.len(), Instant::now() + limits.write_timeout);
    let part = move |from: usize| {
        if Instant::now() > until {
            return Err("the client reads too slowly");
        }
        Ok(body.slice(from..length.min(from + PART_BYTES)))
    };
    let parts = stream::iter((0..length).step_by(PART_BYTES).map(part));
    let headers = [
        ("content-type", "application/octet-stream".to_owned()),
        ("content-length", length.to_string()),
        ("gridguard-batch", requests.to_string()),
        ("gridguard-launches", launches.to_string()),
    ];
    (headers, Body::from_stream(parts)).into_response()
}

/// Counts a request, and its time until the reply begins.
async fn count(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let response = next.run(request).await;
    let status = response.status().as_str().to_owned();
    counter!("gridguard_server_requests_total", "status" => status).increment(1);
    histogram!("gridguard_server_request_seconds").record(begun.elapsed());
    response
}

async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let free = u32::try_from(app.free.available_permits()).unwrap_or(u32::MAX);
    gauge!("gridguard_server_in_flight").set(u32::from(app.limits.in_flight).saturating_sub(free));
    gauge!("gridguard_server_workers_ready")
        .set(u32::try_from(app.working.load(Ordering::SeqCst)).unwrap_or(0));
    ([("content-type", "text/plain; version=0.0.4")], app.metrics.render())
}

async fn health(State(app): State<Arc<App>>) -> impl IntoResponse {
    state(&app, 1)
}

async fn ready(State(app): State<Arc<App>>) -> impl IntoResponse {
    state(&app, app.workers)
}

/// Whether so many workers are left.
fn state(app: &App, needed: usize) -> impl IntoResponse + use<> {
    let working = app.working.load(Ordering::SeqCst);
    let status = if working >= needed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "workers": app.workers, "working": working })))
}

/// Of a reply that is being sent.
const PART_BYTES: usize = 64 << 10;
