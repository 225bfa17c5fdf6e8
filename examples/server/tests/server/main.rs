//! The server and its load generator: as processes on the host, and in this process on devices that fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod attacks;
mod devices;
mod documents;
mod operation;
mod requests;
mod support;
