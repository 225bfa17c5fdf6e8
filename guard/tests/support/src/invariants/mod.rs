//! Generators of launches, and the invariants that must hold for whatever they generate.
//!
//! A generator makes its value from bytes, so that property tests and fuzz targets share it.

pub mod backoff;
mod bytes;
mod case;
mod generate;
mod oracle;
pub mod plans;
pub mod validation;

pub use bytes::{Bytes, from_bytes};
pub use case::{Case, case};
pub use generate::{Batch, Preference};

use proptest::strategy::BoxedStrategy;

/// Any size: small, close to a limit, or close to `u64::MAX`.
pub fn size() -> BoxedStrategy<u64> {
    from_bytes(generate::size)
}
