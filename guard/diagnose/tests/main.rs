//! Logs, messages of many programs, and the texts of diagnoses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod judge;
mod log;

mod messages;
mod reports;
mod rows;
#[allow(dead_code, reason = "the build script reads the rest")]
#[path = "../schema.rs"]
mod schema;
