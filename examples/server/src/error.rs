//! The errors of the HTTP interface: each has a status, a code for programs, and a message with its values.

use std::fmt::Display;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use gridguard::Violations;
use gridguard_kernels::KernelError;
use serde_json::json;

/// The result of a part of a request.
pub(crate) type Served<T> = Result<T, ServeError>;

/// Why a request is not served.
#[derive(Clone, Debug)]
pub(crate) struct ServeError {
    status: u16,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// The rules that the launch breaks.
    violations: Option<Violations>,
}

impl ServeError {
    pub(crate) fn new(status: u16, code: &'static str, message: impl Display) -> Self {
        Self { status, code, message: message.to_string(), violations: None }
    }

    /// The request failed on a device that works.
    pub(crate) fn failed(reason: impl Display) -> Self {
        Self::new(500, "failed", format!("the request failed: {reason}"))
    }

    fn of_driver(error: impl Display, code: Option<i32>) -> Self {
        let is_memory = code == Some(OUT_OF_MEMORY);
        if is_memory { Self::new(503, "out_of_memory", error) } else { Self::failed(error) }
    }
}

impl From<KernelError> for ServeError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Violations(violations) => {
                let refused = Self::new(422, "launch_refused", &violations);
                Self { violations: Some(violations), ..refused }
            }
            KernelError::Memory(error) => error.into(),
            KernelError::Cuda(error) => Self::of_driver(&error, error.driver_code()),
            KernelError::Launch(error) => Self::of_driver(&error, error.driver_code()),
            KernelError::Host(error) => Self::failed(error),
            // No kernel takes the shape.
            other => Self::new(422, "unsupported", other),
        }
    }
}

impl From<DriverError> for ServeError {
    fn from(error: DriverError) -> Self {
        let is_memory = error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        Self::of_driver(error, is_memory.then_some(OUT_OF_MEMORY))
    }
}

impl IntoResponse for ServeError {
    fn into_response(self) -> Response {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(violations) = self.violations {
            error["violations"] = json!(violations);
        }
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Another try may succeed.
        let retry = (self.status == 503).then_some([("retry-after", "1")]);
        (status, retry, Json(json!({ "error": error }))).into_response()
    }
}

pub(crate) const PANICKED: &str = "it panicked";
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
