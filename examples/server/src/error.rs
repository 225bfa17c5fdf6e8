//! The errors of the HTTP interface: each has a status, a code for programs, and a message with its values.

use std::collections::TryReserveError;
use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

use axum::Json;
use axum::http::header::{CONNECTION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use gridguard::pipeline::{PlanError, RunError};
use gridguard_kernels::KernelError;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::share::Resource;

/// The result of a part of the program that is not a request.
pub type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The result of a part of a request.
pub type Served<T> = Result<T, ServeError>;

/// Why a request is not served. The variant's name is the code in the error's JSON, which has the variant's fields too.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ServeError {
    /// There is no such resource.
    #[error("there is no such resource: POST /v1/attention or /v1/block")]
    NotFound,
    /// The resource takes another method.
    #[error("the resource does not take this method")]
    MethodNotAllowed,
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
    NotSafetensors { reason: String },
    /// The header of the safetensors file declares more bytes than the server parses.
    #[error(
        "the header of the safetensors file has {header_bytes} bytes, the server accepts at most {limit_bytes}"
    )]
    HeaderTooLarge { header_bytes: u64, limit_bytes: u64 },
    /// A tensor is missing.
    #[error("the body has no tensor {tensor}")]
    MissingTensor { tensor: &'static str },
    /// A tensor that the resource does not take.
    #[error("the body has a tensor {tensor:?}, expected {expected}")]
    UnexpectedTensor { tensor: String, expected: &'static str },
    /// A tensor of another type.
    #[error("tensor {tensor} is {given}, expected {expected}")]
    WrongDtype { tensor: &'static str, given: String, expected: String },
    /// A tensor of another shape.
    #[error("tensor {tensor} has shape {given:?}, expected {expected}")]
    WrongShape { tensor: &'static str, given: Vec<usize>, expected: String },
    /// More frames than the server accepts: the time of attention is quadratic in them.
    #[error("frames is {frames}, the server accepts at most {limit_frames}")]
    TooManyFrames { frames: u64, limit_frames: u64 },
    /// A shape that the kernels do not support.
    #[error(transparent)]
    UnsupportedShape(#[serde(skip)] KernelError),
    /// The request does not fit the memory of a device, even by itself. It needs `needed_bytes` for all items at once,
    /// and `smallest_bytes` with scratch for the smallest chunk.
    #[error(
        "the request needs {needed_bytes} bytes on a device, {available_bytes} are available; it works with \
         {smallest_bytes} bytes, or with at most {max_items} items"
    )]
    NotEnoughMemory { needed_bytes: u64, available_bytes: u64, smallest_bytes: u64, max_items: u64 },
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
    ShuttingDown,
    /// The device of the request failed, or the last device.
    #[error(transparent)]
    DeviceFailed(#[from] DeviceFailure),
    /// Memory that was available when the server started is not.
    #[error("out of memory: {reason}")]
    OutOfMemory { reason: String },
    /// The kernel of an accepted request was refused or failed, on a device that works.
    #[error("the kernel failed: {reason}")]
    KernelFailed { reason: String },
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
        Self::failed_or_memory(reason, false)
    }

    /// [`Self::Failed`], or [`Self::OutOfMemory`].
    fn failed_or_memory(reason: impl Display, is_out_of_memory: bool) -> Self {
        let reason = reason.to_string();
        if is_out_of_memory { Self::OutOfMemory { reason } } else { Self::Failed { reason } }
    }

    /// The status, and whether the server closes the connection: a part of the body may still be on its way, or the
    /// server stops.
    fn reply(&self) -> (StatusCode, bool) {
        match self {
            Self::BodyBroken { .. } => (StatusCode::BAD_REQUEST, true),
            Self::NotSafetensors { .. } => (StatusCode::BAD_REQUEST, false),
            Self::NotFound => (StatusCode::NOT_FOUND, false),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, false),
            Self::BodyTimeout(_) => (StatusCode::REQUEST_TIMEOUT, true),
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, true),
            Self::HeaderTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, true),
            Self::NotEnoughMemory { .. } => (StatusCode::PAYLOAD_TOO_LARGE, false),
            Self::Full { resource, .. } => {
                (StatusCode::TOO_MANY_REQUESTS, *resource == Resource::BODIES)
            }
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, true),
            Self::Starting | Self::DeviceFailed(_) => (StatusCode::SERVICE_UNAVAILABLE, false),
            Self::OutOfMemory { .. } => (StatusCode::SERVICE_UNAVAILABLE, false),
            Self::KernelFailed { .. } | Self::Failed { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, false)
            }
            // The tensors, or their sizes.
            _ => (StatusCode::UNPROCESSABLE_ENTITY, false),
        }
    }
}

impl From<KernelError> for ServeError {
    fn from(error: KernelError) -> Self {
        let code = match &error {
            KernelError::Memory(error) => return (*error).into(),
            KernelError::Launch(error) => error.driver_code(),
            KernelError::Cuda(error) => error.driver_code(),
            _ => None,
        };
        let reason = error.to_string();
        match code {
            Some(OUT_OF_MEMORY) => Self::OutOfMemory { reason },
            _ => Self::KernelFailed { reason },
        }
    }
}

impl From<PlanError> for ServeError {
    fn from(error: PlanError) -> Self {
        // A request by itself fits: admission has checked it.
        Self::failed_or_memory(&error, matches!(error, PlanError::BudgetTooSmall { .. }))
    }
}

impl From<RunError> for ServeError {
    fn from(error: RunError) -> Self {
        Self::failed_or_memory(&error, matches!(error, RunError::Scratch { .. }))
    }
}

impl From<DriverError> for ServeError {
    fn from(error: DriverError) -> Self {
        Self::failed_or_memory(error, error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

impl From<TryReserveError> for ServeError {
    fn from(error: TryReserveError) -> Self {
        Self::failed_or_memory(error, true)
    }
}

impl IntoResponse for ServeError {
    fn into_response(self) -> Response {
        let (status, closes) = self.reply();
        let mut error = serde_json::to_value(&self).unwrap_or_default();
        error["message"] = self.to_string().into();
        if let Self::Full { resource, .. } = &self {
            error["code"] = resource.code.into();
        }
        let mut response = (status, Json(json!({ "error": error }))).into_response();
        if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        if closes {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

fn milliseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// A batch takes less time than this.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");
