//! The errors of the HTTP interface: each has a status, a code for programs, and a message with its values.

use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

use axum::Json;
use axum::http::header::{CONNECTION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use gridguard_kernels::KernelError;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::share::Resource;

/// The result of a part of the program that is not a request.
pub type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The result of a part of a request.
pub type Served<T> = Result<T, ServeError>;

/// Why a request is not served. Fields are also fields of the error's JSON.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ServeError {
    /// There is no such resource.
    #[error("there is no such resource: POST /v1/attention or /v1/block")]
    NotFound,
    /// The resource takes another method.
    #[error("the resource does not take this method")]
    Method,
    /// The body is larger than the server accepts. A body without a declared length has at least `body_bytes`.
    #[error("the body has {body_bytes} bytes or more, the limit is {limit_bytes}")]
    BodyTooLarge { body_bytes: u64, limit_bytes: u64 },
    /// The body ended early, or the connection failed.
    #[error("the body could not be read: {reason}")]
    BodyBroken { reason: String },
    /// The body took too long.
    #[error("the body did not arrive within {0:?}")]
    BodyTimeout(#[serde(skip)] Duration),
    /// The body is not a safetensors file.
    #[error("the body is not a valid safetensors file: {reason}")]
    Format { reason: String },
    /// The header of the safetensors file declares more bytes than the server parses.
    #[error(
        "the header of the safetensors file has {header_bytes} bytes, the server accepts at most {limit_bytes}"
    )]
    HeaderTooLarge { header_bytes: u64, limit_bytes: u64 },
    /// A tensor is missing.
    #[error("the body has no tensor {tensor}")]
    Missing { tensor: &'static str },
    /// A tensor that the resource does not take.
    #[error("the body has a tensor {tensor:?}, expected {expected}")]
    Unexpected { tensor: String, expected: &'static str },
    /// A tensor of another type.
    #[error("tensor {tensor} is {given}, expected {expected}")]
    Dtype { tensor: &'static str, given: String, expected: String },
    /// A tensor of another shape.
    #[error("tensor {tensor} has shape {given:?}, expected {expected}")]
    Shape { tensor: &'static str, given: Vec<usize>, expected: String },
    /// More frames than the server accepts: the time of attention is quadratic in them.
    #[error("frames is {frames}, the server accepts at most {limit_frames}")]
    Frames { frames: u64, limit_frames: u64 },
    /// A shape that the kernels do not support.
    #[error(transparent)]
    Kernel(
        #[from]
        #[serde(skip)]
        KernelError,
    ),
    /// The request does not fit the memory of a device, even by itself. It needs `needed_bytes` for all items at once,
    /// and `smallest_bytes` with scratch for the smallest chunk.
    #[error(
        "the request needs {needed_bytes} bytes on a device, {available_bytes} are available; it works with \
         {smallest_bytes} bytes, or with at most {max_items} items"
    )]
    Memory { needed_bytes: u64, available_bytes: u64, smallest_bytes: u64, max_items: u64 },
    /// The request would compute for too long.
    #[error(
        "the request would take about {estimate:?} on the slowest device, the server accepts at most {limit:?}: send \
         fewer frames or items"
    )]
    TooMuchWork {
        #[serde(rename = "estimate_ms", serialize_with = "milliseconds")]
        estimate: Duration,
        #[serde(rename = "limit_ms", serialize_with = "milliseconds")]
        limit: Duration,
    },
    /// A limit is reached: all clients have `taken`, the client itself has `own`.
    #[error(
        "{taken} of {limit} {} are taken, {own} of them by this client, which leaves no more for it: retry later",
        resource.unit
    )]
    Full {
        #[serde(skip)]
        resource: Resource,
        limit: u64,
        taken: u64,
        own: u64,
    },
    /// The devices are not ready yet.
    #[error("the server is starting: retry later")]
    Starting,
    /// The server stops.
    #[error("the server is shutting down: send the request to another one")]
    Draining,
    /// The device of the request failed, or the last device.
    #[error(transparent)]
    DeviceFailed(#[from] DeviceFailure),
    /// Memory that was available when the server started is not.
    #[error("out of memory: {reason}")]
    OutOfMemory { reason: String },
    /// The request failed on a device that works.
    #[error("the request failed: {reason}")]
    Failed { reason: String },
}

/// Why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{device} failed: {reason}")]
pub struct DeviceFailure {
    /// The device, or its worker before the device is known.
    pub device: String,
    /// The reason.
    pub reason: String,
}

impl ServeError {
    /// [`Self::Failed`].
    #[must_use]
    pub fn failed(reason: impl Display) -> Self {
        Self::Failed { reason: reason.to_string() }
    }

    /// The status and the code.
    const fn parts(&self) -> (StatusCode, &'static str) {
        match self {
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::BodyBroken { .. } => (StatusCode::BAD_REQUEST, "body_broken"),
            Self::BodyTimeout(_) => (StatusCode::REQUEST_TIMEOUT, "body_timeout"),
            Self::Format { .. } => (StatusCode::BAD_REQUEST, "not_safetensors"),
            Self::HeaderTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "header_too_large"),
            Self::Missing { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "missing_tensor"),
            Self::Unexpected { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "unexpected_tensor"),
            Self::Dtype { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "wrong_dtype"),
            Self::Shape { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "wrong_shape"),
            Self::Frames { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "too_many_frames"),
            Self::Kernel(_) => (StatusCode::UNPROCESSABLE_ENTITY, "unsupported_shape"),
            Self::Memory { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "not_enough_memory"),
            Self::TooMuchWork { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "too_much_work"),
            Self::Full { resource, .. } => (StatusCode::TOO_MANY_REQUESTS, resource.code),
            Self::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
            Self::DeviceFailed(_) => (StatusCode::SERVICE_UNAVAILABLE, "device_failed"),
            Self::OutOfMemory { .. } => (StatusCode::SERVICE_UNAVAILABLE, "out_of_memory"),
            Self::Failed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        }
    }

    /// Whether the server closes the connection: a part of the body may still be on its way, or the server stops.
    fn closes(&self) -> bool {
        match self {
            Self::BodyBroken { .. } | Self::BodyTimeout(_) | Self::Draining => true,
            Self::BodyTooLarge { .. } | Self::HeaderTooLarge { .. } => true,
            Self::Full { resource, .. } => *resource == Resource::BODIES,
            _ => false,
        }
    }
}

impl IntoResponse for ServeError {
    fn into_response(self) -> Response {
        let ((status, code), message) = (self.parts(), self.to_string());
        let mut error = serde_json::to_value(&self).unwrap_or_default();
        let mut fields = error.as_object_mut().map(std::mem::take).unwrap_or_default();
        fields.extend([("code".to_owned(), code.into()), ("message".to_owned(), message.into())]);
        let mut response = (status, Json(json!({ "error": fields }))).into_response();
        if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        if self.closes() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

fn milliseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// A batch takes less time than this.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");
