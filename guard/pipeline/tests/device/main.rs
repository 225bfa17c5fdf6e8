//! Pipelines on the fake driver: needs gcc, but no GPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod chunks;
mod from_host;
mod graphs;
#[allow(dead_code, reason = "the guard's own tests use the rest")]
#[path = "../../../tests/fake_driver/kernels.rs"]
mod kernels;
mod meanwhile;
mod observers;
mod parts;
mod raw;
mod refusals;
mod scratch;
mod spilling;
#[cfg(feature = "profile")]
mod tuned;
