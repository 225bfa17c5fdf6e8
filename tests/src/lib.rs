//! What several tests share.

mod child;
pub mod golden;
pub mod invariants;
mod limits;

pub use child::assert_passed;
pub use limits::assert_same_limits;
