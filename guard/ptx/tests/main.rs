//! Rewritten PTX, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod refusals;
mod rewriting;
