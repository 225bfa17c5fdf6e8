//! Runs programs with the preloaded library on the fake driver: their output and status are unchanged, and their
//! launches are watched.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod failures;
mod fixes;
mod graphs;
mod indices;
mod machine_code;
mod memory;
mod ordinary;
mod processes;
mod programs;
mod python;
mod refusals;
mod reports;
mod runtimes;
mod ways;
