//! What several tests of this package share.

pub mod documents;
pub mod figures;
pub mod golden;
pub mod invariants;
pub mod product;
