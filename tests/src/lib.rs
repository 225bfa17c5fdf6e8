//! What several tests of this package share.

pub mod golden;
pub mod invariants;
