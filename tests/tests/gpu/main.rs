//! What needs a real device: limits, launches, streams, graphs, threads, and the driver's answers.
//!
//! `tests/gpu-suite.sh` packs this and runs it on a machine with a CUDA GPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod attention;
mod attributes;
mod bench_cases;
mod capi;
mod captures;
mod compiling;
mod conformance;
mod cudarc_and_raw;
mod driver_log;
mod gated_product;
mod green_contexts;
mod kernel_images;
mod limits;
mod memory;
mod our_forms;
mod pipeline_tuning;
mod pipelines;
mod products;
mod profile_launches;
mod refusals;
mod residual_norm;
mod rewritten;
mod rows;
mod sizes;
mod small_problems;
mod streams;
mod support;
mod temporal_block;
mod tune_fn;
mod tuning;
