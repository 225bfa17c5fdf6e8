//! What several tests share.

pub mod golden;
