//! The C interface as C and C++ programs use it: the header, the exported symbols, and programs built
//! with gcc and g++.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod allocations;
mod build;
mod cpp;
mod cuda;
mod examples;
mod header;
mod programs;
mod symbols;
