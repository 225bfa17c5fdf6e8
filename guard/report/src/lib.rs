//! Reports of CUDA programs, as data and as text: launches and allocations under `gridguard run`, and the failures
//! in a log.
//!
//! # Features
//!
//! - `explain`, on by default: [`explain_log`], the failures in a log, and [`Diagnose`], the errors of the guard as
//!   CUDA's failures.
//! - `cuda`: [`Diagnose`] for the errors of the driver and of launches.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
#[cfg(feature = "explain")]
mod evidence;
mod frame;
mod index;
#[cfg(feature = "explain")]
mod log;
mod memory;
mod message;
mod nearness;
mod process;
#[cfg(feature = "explain")]
mod stated_launch;
mod text;

pub use error::ReportError;
#[cfg(feature = "explain")]
pub use evidence::{Diagnose, device_facts, of_code, violated_rules};
pub use frame::PythonFrame;
pub use index::{IndexCoverage, IndexUse};
#[cfg(feature = "explain")]
pub use log::{explain_log, scan};
pub use memory::{
    AllocationGroup, Bytes, DeviceFree, DeviceMemory, MemoryHeld, MemoryKind, MemoryUse,
    RefusedAllocation,
};
pub use message::Message;
pub use nearness::Nearness;
pub use process::{
    FORMAT, KernelUse, MAX_KERNELS, MAX_REPORT_BYTES, RefusedLaunch, ReportHead, WatchReport,
};
#[cfg(feature = "explain")]
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
