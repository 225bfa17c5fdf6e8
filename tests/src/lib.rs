//! What several tests share.

pub mod golden;
pub mod invariants;
mod limits;

pub use limits::assert_same_limits;
