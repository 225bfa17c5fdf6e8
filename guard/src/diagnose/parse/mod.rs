//! Finds CUDA failures in text.

mod code;
mod input;
mod line;
mod log;
#[cfg(test)]
mod messages;
mod numbers;
mod phrases;

pub use input::LONGEST_LINE_BYTES;
pub(super) use line::similar;
pub use log::{Finding, Log, MOST_FINDINGS};
#[cfg(feature = "cuda")]
pub(crate) use numbers::architecture;
