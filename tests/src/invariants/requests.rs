//! Requests as JSON lines, as `gridguard check --requests` reads them.

use gridguard::check::CheckRequest;
use gridguard::{DeviceLimits, catalog};

use super::description;

/// Every line is a request or is refused with its place, and each request gets a true verdict.
pub(super) fn check(bytes: &[u8]) {
    let h200 = &catalog::gpu("h200").expect("catalogued").limits;
    let any = DeviceLimits::any_device();
    for line in bytes.split(|byte| *byte == b'\n') {
        match serde_json::from_slice::<CheckRequest>(line) {
            Ok(request) => [h200, &any].map(|device| description::check(&request, device)),
            Err(error) => {
                assert!(error.line() <= 1 && error.column() <= line.len() + 1, "{error}");
                continue;
            }
        };
    }
}
