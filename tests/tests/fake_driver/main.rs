//! The CUDA room of the guard on a fake driver: needs gcc, but no GPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod arguments;
mod attributes;
mod availability;
mod belonging;
mod builder;
mod capture;
mod checked_launches;
mod conformance;
#[path = "../counting_allocator/mod.rs"]
mod counting_allocator;
mod devices;
mod driver_log;
#[path = "../fake_library/mod.rs"]
mod fake_library;
mod first_use;
mod harness;
mod kernels;
mod late_errors;
mod loading;
mod memory;
mod optional_features;
mod raw_kernels;
mod refusals;
mod residency;
mod splitting;
mod suspects;
mod threads;

#[global_allocator]
static ALLOCATOR: counting_allocator::Counting = counting_allocator::Counting;
