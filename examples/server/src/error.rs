//! Why a request is not served: a status, a code for programs, and a message with its numbers.

use std::fmt::Display;
use std::time::Duration;

use axum::Json;
use axum::http::header::{CONNECTION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use gridguard_kernels::KernelError;
use serde_json::{Map, Value};

use crate::share::Resource;

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// There is no such resource.
    #[error("there is no such resource: POST /v1/attention or /v1/block")]
    NotFound,
    /// The resource takes another method.
    #[error("the resource does not take this method")]
    Method,
    /// The body is larger than the server accepts.
    #[error("the body has {bytes} bytes or more, the limit is {limit}")]
    BodyTooLarge {
        /// Bytes that it has at least.
        bytes: u64,
        /// The most bytes of a body.
        limit: u64,
    },
    /// The body ended early, or the connection failed.
    #[error("the body could not be read: {reason}")]
    BodyBroken {
        /// Why.
        reason: String,
    },
    /// The body took too long.
    #[error("the body did not arrive within {limit:?}")]
    BodyTimeout {
        /// The time limit.
        limit: Duration,
    },
    /// The body is not a safetensors file.
    #[error("the body is not a valid safetensors file: {reason}")]
    Format {
        /// Why.
        reason: String,
    },
    /// The header of the safetensors file is too long to be parsed.
    #[error(
        "the header of the safetensors file has {bytes} bytes, the server accepts at most {limit}"
    )]
    HeaderTooLarge {
        /// Bytes of the header, as the body declares them.
        bytes: u64,
        /// The most bytes of a header.
        limit: u64,
    },
    /// A tensor is missing.
    #[error("the body has no tensor {tensor}")]
    Missing {
        /// The tensor.
        tensor: &'static str,
    },
    /// A tensor that the resource does not take.
    #[error("the body has a tensor {tensor:?}, expected {expected}")]
    Unexpected {
        /// The tensor.
        tensor: String,
        /// The tensors that the resource takes.
        expected: &'static str,
    },
    /// A tensor of another type.
    #[error("tensor {tensor} is {given}, expected {expected}")]
    Dtype {
        /// The tensor.
        tensor: &'static str,
        /// Its type.
        given: String,
        /// The types that are supported.
        expected: String,
    },
    /// A tensor of another shape.
    #[error("tensor {tensor} has shape {given:?}, expected {expected}")]
    Shape {
        /// The tensor.
        tensor: &'static str,
        /// Its shape.
        given: Vec<usize>,
        /// The shape that is supported.
        expected: String,
    },
    /// More frames than the server accepts: time is quadratic in them.
    #[error("frames is {given}, the server accepts at most {limit}")]
    Frames {
        /// Frames of the request.
        given: u64,
        /// The most frames.
        limit: u64,
    },
    /// A shape that the kernels do not support.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The request does not fit the memory of a device, even by itself.
    #[error(
        "the request needs {needed} bytes on a device, {available} are available; it works with \
         {smallest} bytes, or with at most {max_items} items"
    )]
    Memory {
        /// Bytes of its tensors and of scratch for all items at once.
        needed: u64,
        /// Bytes that a device has for requests.
        available: u64,
        /// The fewest bytes with which it works: scratch for the smallest chunk.
        smallest: u64,
        /// The most items of this shape that fit.
        max_items: u64,
    },
    /// The request would compute for too long.
    #[error(
        "the request would take about {estimate:?} on the slowest device, the server accepts at most {limit:?}: send \
         fewer frames or items"
    )]
    TooMuchWork {
        /// The estimate.
        estimate: Duration,
        /// The most of a request.
        limit: Duration,
    },
    /// A limit is reached, by all clients or by this one.
    #[error(
        "{taken} of {limit} {} are taken, {own} of them by this client, which leaves no more for it: retry later",
        resource.unit()
    )]
    Full {
        /// What the server has too little of.
        resource: Resource,
        /// The limit.
        limit: u64,
        /// What all clients have.
        taken: u64,
        /// What the client has.
        own: u64,
    },
    /// The devices are not ready yet.
    #[error("the server is starting: retry later")]
    Starting,
    /// The server stops.
    #[error("the server is shutting down: send the request to another one")]
    Draining,
    /// The device failed, and no other is left or the request was running on it.
    #[error("{device} failed: {reason}")]
    DeviceFailed {
        /// The device.
        device: String,
        /// Why.
        reason: String,
    },
    /// Memory that was available when the server started is not.
    #[error("out of memory: {reason}")]
    OutOfMemory {
        /// Why.
        reason: String,
    },
    /// The request failed on a device that works.
    #[error("the request failed: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}

/// Names and values of the numbers in a message.
type Numbers = Vec<(&'static str, u64)>;

impl ServeError {
    /// [`Self::Failed`].
    #[must_use]
    pub fn failed(reason: impl Display) -> Self {
        Self::Failed { reason: reason.to_string() }
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.parts().0
    }

    /// The status, the code, and the numbers of the message.
    fn parts(&self) -> (StatusCode, &'static str, Numbers) {
        let none = Vec::new;
        match self {
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", none()),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", none()),
            Self::BodyTooLarge { bytes, limit } => {
                let numbers = vec![("body_bytes", *bytes), ("limit_bytes", *limit)];
                (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", numbers)
            }
            Self::BodyBroken { .. } => (StatusCode::BAD_REQUEST, "body_broken", none()),
            Self::BodyTimeout { .. } => (StatusCode::REQUEST_TIMEOUT, "body_timeout", none()),
            Self::Format { .. } => (StatusCode::BAD_REQUEST, "not_safetensors", none()),
            Self::HeaderTooLarge { bytes, limit } => {
                let numbers = vec![("header_bytes", *bytes), ("limit_bytes", *limit)];
                (StatusCode::PAYLOAD_TOO_LARGE, "header_too_large", numbers)
            }
            Self::Missing { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "missing_tensor", none()),
            Self::Unexpected { .. } => {
                (StatusCode::UNPROCESSABLE_ENTITY, "unexpected_tensor", none())
            }
            Self::Dtype { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "wrong_dtype", none()),
            Self::Shape { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "wrong_shape", none()),
            Self::Frames { given, limit } => {
                let numbers = vec![("frames", *given), ("limit_frames", *limit)];
                (StatusCode::UNPROCESSABLE_ENTITY, "too_many_frames", numbers)
            }
            Self::Kernel(_) => (StatusCode::UNPROCESSABLE_ENTITY, "unsupported_shape", none()),
            Self::Memory { needed, available, smallest, max_items } => {
                let numbers = vec![
                    ("needed_bytes", *needed),
                    ("available_bytes", *available),
                    ("smallest_bytes", *smallest),
                    ("max_items", *max_items),
                ];
                (StatusCode::PAYLOAD_TOO_LARGE, "not_enough_memory", numbers)
            }
            Self::TooMuchWork { estimate, limit } => {
                let milliseconds =
                    |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                let numbers = vec![
                    ("estimate_ms", milliseconds(estimate)),
                    ("limit_ms", milliseconds(limit)),
                ];
                (StatusCode::UNPROCESSABLE_ENTITY, "too_much_work", numbers)
            }
            Self::Full { resource, limit, taken, own } => {
                let numbers = vec![("limit", *limit), ("taken", *taken), ("own", *own)];
                (StatusCode::TOO_MANY_REQUESTS, resource.code(), numbers)
            }
            Self::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting", none()),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down", none()),
            Self::DeviceFailed { .. } => (StatusCode::SERVICE_UNAVAILABLE, "device_failed", none()),
            Self::OutOfMemory { .. } => (StatusCode::SERVICE_UNAVAILABLE, "out_of_memory", none()),
            Self::Failed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "failed", none()),
        }
    }

    /// Whether the connection cannot or should not serve another request.
    const fn closes(&self) -> bool {
        matches!(
            self,
            Self::BodyTooLarge { .. }
                | Self::BodyBroken { .. }
                | Self::BodyTimeout { .. }
                | Self::HeaderTooLarge { .. }
                | Self::Full { resource: Resource::Bodies, .. }
                | Self::Draining
        )
    }
}

impl IntoResponse for ServeError {
    fn into_response(self) -> Response {
        let (status, code, numbers) = self.parts();
        let mut error = Map::new();
        error.insert("code".to_owned(), code.into());
        error.insert("message".to_owned(), self.to_string().into());
        error.extend(numbers.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
        let body = Map::from_iter([("error".to_owned(), Value::Object(error))]);
        let mut response = (status, Json(body)).into_response();
        if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        if self.closes() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A batch takes far less; a client that waits so long finds another queue.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");
