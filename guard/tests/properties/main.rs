//! What holds for every number of items, every request and every plan.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod backoff;
mod chunks;
mod plans;
mod validation;

use proptest::prelude::ProptestConfig;

/// So many cases. A failing one is written down as a test by hand and not in a file.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
