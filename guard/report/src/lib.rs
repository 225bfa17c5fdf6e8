//! Reports of CUDA programs, as data and as text: what a program launched and allocated under `gridguard run`, and
//! the failures in a log.
//!
//! # Features
//!
//! - `explain`, on by default: [`ExplainedLog`], the failures in a log.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod frame;
#[cfg(feature = "explain")]
mod log;
mod memory;
mod process;
#[cfg(feature = "explain")]
mod stated_launch;
mod text;

pub use frame::PythonFrame;
#[cfg(feature = "explain")]
pub use log::{ExplainedFailure, ExplainedLog, scan};
pub use memory::{
    AllocationGroup, Bytes, DeviceFree, DeviceMemory, MemoryHeld, MemoryKind, MemoryUse,
    RefusedAllocation,
};
pub use process::{
    FORMAT, KernelUse, MAX_KERNELS, MAX_REPORT_BYTES, Nearness, RefusedLaunch, ReportError,
    ReportHead, WatchReport,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
