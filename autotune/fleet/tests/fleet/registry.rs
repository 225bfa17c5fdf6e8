//! A registry in memory, and links to it whose answers a test changes.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use gridguard_fleet::{Digest, Network};
use http::{Method, Response, StatusCode};
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};

/// The state of a registry with one repository.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) blobs: HashMap<String, Bytes>,
    pub(crate) tags: BTreeMap<String, Bytes>,
    pub(crate) requests: usize,
}

pub(crate) type Answer = Result<Response<Bytes>, &'static str>;

/// Changes the answers of a registry. `Err` is a connection without an answer.
pub(crate) type Fault = Box<dyn Fn(&HttpRequest, Answer) -> Answer + Send + Sync>;

/// The way of a client to the registry.
#[derive(Clone)]
pub(crate) struct Link {
    registry: Arc<Mutex<Registry>>,
    fault: Arc<Mutex<Option<Fault>>>,
    delay: Arc<Mutex<Duration>>,
}

impl Link {
    pub(crate) fn new() -> Self {
        Self { registry: Arc::default(), fault: Arc::default(), delay: Arc::default() }
    }

    /// Another link to the same registry.
    pub(crate) fn another(&self) -> Self {
        Self { registry: Arc::clone(&self.registry), ..Self::new() }
    }

    pub(crate) fn network(&self) -> Network {
        Network(HttpClient::new(self.clone()))
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap()
    }

    /// Replaces the fault of this link.
    pub(crate) fn set(
        &self,
        fault: impl Fn(&HttpRequest, Answer) -> Answer + Send + Sync + 'static,
    ) {
        *self.fault.lock().unwrap() = Some(Box::new(fault));
    }

    pub(crate) fn heal(&self) {
        *self.fault.lock().unwrap() = None;
        self.delay(Duration::ZERO);
    }

    /// Delays each answer of this link.
    pub(crate) fn delay(&self, delay: Duration) {
        *self.delay.lock().unwrap() = delay;
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

#[async_trait]
impl HttpService for Link {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let delay = *self.delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        let answer = Ok(self.registry().answer(&request));
        let answer = match &*self.fault.lock().unwrap() {
            Some(fault) => fault(&request, answer),
            None => answer,
        };
        let failed = |reason| HttpError::new(HttpErrorKind::Connect, std::io::Error::other(reason));
        Ok(answer.map_err(failed)?.map(Into::into))
    }
}

impl Registry {
    fn answer(&mut self, request: &HttpRequest) -> Response<Bytes> {
        self.requests += 1;
        let Some(path) = request.uri().path().strip_prefix("/v2/gpu/profiles/") else {
            return answer(StatusCode::NOT_FOUND, Bytes::new());
        };
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        let (kind, name) = path.split_once('/').expect("a path");
        let body = || request.body().as_bytes().cloned().unwrap_or_default();
        match (request.method(), kind, name) {
            (&Method::GET, "manifests", tag) => match self.tags.get(tag) {
                None => answer(StatusCode::NOT_FOUND, Bytes::new()),
                Some(manifest) => {
                    let etag = format!("\"{}\"", Digest::of(manifest));
                    let is_known = header("if-none-match") == Some(&etag);
                    let status = if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
                    let mut answer =
                        answer(status, if is_known { Bytes::new() } else { manifest.clone() });
                    answer.headers_mut().insert("etag", etag.parse().unwrap());
                    answer
                }
            },
            (&Method::GET, "blobs", digest) => match self.blobs.get(digest) {
                None => answer(StatusCode::NOT_FOUND, Bytes::new()),
                Some(blob) => answer(StatusCode::OK, blob.clone()),
            },
            (&Method::GET, "tags", "list") => {
                let tags: Vec<_> = self.tags.keys().collect();
                answer(
                    StatusCode::OK,
                    serde_json::json!({ "name": "p", "tags": tags }).to_string().into(),
                )
            }
            (&Method::POST, "blobs", "uploads/") => {
                let place = "/v2/gpu/profiles/blobs/uploads/1?state=x";
                with_header(StatusCode::ACCEPTED, "location", place)
            }
            (&Method::PUT, "blobs", "uploads/1") => {
                let query = request.uri().query().unwrap_or_default();
                let digest = query.split("digest=").nth(1).expect("a digest").replace("%3A", ":");
                assert_eq!(digest, Digest::of(&body()).to_string());
                self.blobs.insert(digest, body());
                answer(StatusCode::CREATED, Bytes::new())
            }
            (&Method::PUT, "manifests", tag) => {
                self.tags.insert(tag.to_owned(), body());
                answer(StatusCode::CREATED, Bytes::new())
            }
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn with_header(status: StatusCode, name: &'static str, value: &str) -> Response<Bytes> {
    let mut answer = answer(status, Bytes::new());
    answer.headers_mut().insert(name, value.parse().unwrap());
    answer
}

pub(crate) fn answer(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
}
