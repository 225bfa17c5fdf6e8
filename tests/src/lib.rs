//! What several tests share.

pub mod golden;
mod limits;

pub use limits::assert_same_limits;
