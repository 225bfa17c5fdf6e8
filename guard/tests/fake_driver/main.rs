//! The `cuda` module on a fake driver: needs gcc, but no GPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod arguments;
mod attributes;
mod availability;
mod belonging;
mod builder;
mod builder_chunks;
mod capture;
mod checked_launches;
mod conformance;
mod devices;
mod draws;
mod driver_log;
mod first_use;
#[cfg(feature = "ptx")]
mod index;
mod kernel_builder;
mod kernels;
mod late_errors;
mod loading;
mod local_memory;
mod memory;
#[cfg(all(feature = "tracing", feature = "metrics", feature = "profile"))]
mod observed;
mod optional_features;
mod raw_kernels;
mod refusals;
mod residency;
#[cfg(feature = "ptx")]
mod rewritten;
mod safe;
mod shares;
mod splitting;
mod suspects;
mod threads;
#[cfg(feature = "profile")]
mod tuned;

use gridguard_test_support::allocator::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
