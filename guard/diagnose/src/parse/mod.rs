//! Finds CUDA failures in text.

mod driver_log;
mod facts;
pub(crate) mod input;
mod log;
mod phrases;
mod recognize;
mod remarks;
mod shapes;
mod sizes;
mod traceback;
mod work;

pub use input::MAX_LINE_BYTES;
pub use log::{LogFinding, LogScanner, MAX_FINDINGS};
pub use recognize::similar_failures;
