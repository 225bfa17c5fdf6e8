//! Finds CUDA failures in text.

mod line;
mod log;
#[cfg(test)]
mod messages;
mod numbers;

pub use log::{Finding, LONGEST_LINE_BYTES, Log, MOST_FINDINGS};
#[cfg(feature = "cuda")]
pub(crate) use numbers::architecture;
