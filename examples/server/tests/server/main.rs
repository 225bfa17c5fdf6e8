//! The server as a process on the host: what it serves, what it refuses, and how it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod operation;
mod requests;
mod support;
