//! Properties of every number of items, every request and every plan.

mod backoff;
mod chunks;
mod plans;
mod validation;

use proptest::prelude::ProptestConfig;

/// The configuration for this number of cases. Write failing cases as tests: they are not saved to a file.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
