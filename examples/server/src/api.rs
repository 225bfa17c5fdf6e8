//! The resources: attention, and what operators ask for.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::error_handling::HandleErrorLayer;
use axum::extract::{DefaultBodyLimit, FromRequest, MatchedPath, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{BoxError, Json, Router};
use futures_util::stream;
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::PrometheusHandle;
use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::error::Overloaded;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::trace::{DefaultOnResponse, TraceLayer};
use tracing::{Level, Span, info_span};

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
            let message = format!("already {in_flight} in flight: retry later");
            return ServeError::new(503, "overloaded", message);
        }
        ServeError::new(503, "timed_out", format!("the request was not done within {timeout:?}"))
    };
    let layers = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(refused))
        .load_shed()
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&app.free)))
        .timeout(timeout)
        .layer(DefaultBodyLimit::max(max_body));
    let routes = Router::new().route("/v1/attention", post(attention)).route_layer(layers);
    let log = TraceLayer::new_for_http().make_span_with(span).on_failure(());
    let all = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(log.on_response(DefaultOnResponse::new().level(Level::INFO)))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(from_fn(count))
        .layer(CatchPanicLayer::custom(|_| ServeError::failed(PANICKED).into_response()));
    // Without load shedding: operators see an overloaded server.
    routes
        .route("/metrics", get(metrics))
        .route("/health", get(async |State(app): State<Arc<App>>| state(&app, 1)))
        .route("/ready", get(async |State(app): State<Arc<App>>| state(&app, app.workers)))
        .fallback(async || ServeError::new(404, "not_found", NOT_FOUND))
        .method_not_allowed_fallback(async || ServeError::new(405, "method_not_allowed", NOT_TAKEN))
        .layer(all)
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
        ServeError::new(413, "body_too_large", format!("the body has more than {max_body} bytes"))
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

/// What the log says about a request.
fn span(request: &Request) -> Span {
    let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok());
    info_span!("request", method = %request.method(), path = request.uri().path(), id)
}

/// Counts a request, and its time until the reply begins. Paths without a resource are counted together.
async fn count(path: Option<MatchedPath>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let response = next.run(request).await;
    let path = path.as_ref().map_or("other", MatchedPath::as_str).to_owned();
    let status = response.status().as_str().to_owned();
    histogram!("gridguard_server_request_seconds", "path" => path.clone()).record(begun.elapsed());
    counter!("gridguard_server_requests_total", "path" => path, "status" => status).increment(1);
    response
}

async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let free = u32::try_from(app.free.available_permits()).unwrap_or(u32::MAX);
    gauge!("gridguard_server_in_flight").set(u32::from(app.limits.in_flight).saturating_sub(free));
    let set = |name, workers| gauge!(name).set(u32::try_from(workers).unwrap_or(u32::MAX));
    set("gridguard_server_workers", app.workers);
    set("gridguard_server_workers_ready", app.working.load(Ordering::SeqCst));
    gauge!("gridguard_server_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1);
    of_process();
    ([("content-type", "text/plain; version=0.0.4")], app.metrics.render())
}

/// What Linux counts for this process, by the names of Prometheus.
fn of_process() -> Option<()> {
    let cpu = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).ok()?;
    let pages: u32 =
        fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    let page = u32::try_from(page_size()).ok()?;
    let files = u32::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()?;
    gauge!("process_cpu_seconds_total").set(cpu);
    gauge!("process_resident_memory_bytes").set(f64::from(pages) * f64::from(page));
    gauge!("process_open_fds").set(files);
    Some(())
}

/// Whether so many workers are left.
fn state(app: &App, needed: usize) -> impl IntoResponse + use<> {
    let working = app.working.load(Ordering::SeqCst);
    let status = if working >= needed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "workers": app.workers, "working": working })))
}

const NOT_FOUND: &str = "there is no such resource: POST /v1/attention, or GET /metrics";
const NOT_TAKEN: &str = "the resource does not take this method";
/// Of a reply that is being sent.
const PART_BYTES: usize = 64 << 10;
