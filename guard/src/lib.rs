//! Validates CUDA launches against the limits of device and kernel, explains each violation, and splits
//! launches that are too large.
//!
//! # What it is for
//!
//! A launch whose grid exceeds 65,535 blocks on y or z fails. On CUDA 13 the error reads `CUDA error:
//! invalid argument`, before that `CUDA error: invalid configuration argument`, and it is often mistaken
//! for an out-of-memory error. This crate reports an oversized launch before it reaches the driver: which axis, which
//! value, whose limit, and what to do. If the blocks along an axis work on independent items, it splits the launch into
//! chunks that fit, each on its part of the same tensors.
//!
//! Use it where grids grow with the input: batches, sequences, images, frames. A legal launch costs almost nothing:
//! validating and planning neither allocate nor lock.
//!
//! # A launch, step by step
//!
//! None of these steps needs a GPU:
//!
//! ```
//! use gridguard::{
//!     Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Plan,
//!     validate,
//! };
//!
//! // Temporal attention in video diffusion: 6 x 40 x 64 positions of 5 heads each.
//! let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("attention"));
//! let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
//!
//! let violations = validate(&request, &limits).expect_err("76,800 blocks on y");
//! assert!(violations.to_string().starts_with("grid.y is 76800 blocks, the limit is 65535"));
//!
//! let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);
//! let plan = Plan::new(&request, Some(&batch), &limits, Choice::AUTOMATIC)?;
//! assert_eq!(plan.len(), 2);
//! assert_eq!(plan.largest_chunk(), 7680);
//! # Ok::<(), gridguard::Violations>(())
//! ```
//!
//! # Where next
//!
//! - Launch on a device: `Guard::cuda` or [`Guard::best`], then `Guard::launch` with `cuda::Args` (feature `cuda`).
//! - Already on cudarc: `Guard::builder` takes the calls of cudarc's launch builder. On another CUDA binding:
//!   `Guard::launch_raw` with [`RawArgs`].
//! - Say what a kernel may be split into: [`BatchAxis`]. Without a declaration: `Guard::load_ptx` (feature `ptx`).
//! - Run a plan on the CPU: [`Guard::host`] and `Guard::launch_on_host` (feature `host`).
//! - Use choices that a tuner measured: `profile::Profile` (feature `profile`).
//! - Several kernels within a memory budget: the package `gridguard-pipeline`.
//!
//! # Features
//!
//! All are additive, and the crate works without any of them. `cuda` is on by default.
//!
//! - `cuda`: launches through the CUDA driver, with cudarc. Its bindings follow the CUDA version of the
//!   installed nvcc, or are the newest without nvcc. Your own manifest can choose another (such as `cuda-12080`).
//! - `host`: runs plans on the CPU with rayon.
//! - `catalog`: limits of well-known GPUs, and a corpus of reported launches that overflowed.
//! - `profile`: tuned choices from RON files, one per device.
//! - `image`: what cubins, PTX and fatbins state about their kernels, without a GPU.
//! - `ptx`: rewrites PTX, so that a grid that is too large is launched in parts without a declaration.
//! - `tracing`: rejections, splits, fallbacks, late errors and profile lookups as events.
//! - `metrics`: the same as numbers, which `describe_metrics` lists.
//! - `serde`: requests, limits and verdicts as data; enabled by `catalog` and `profile`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "cuda", feature = "image", feature = "profile", feature = "ptx")),
    allow(dead_code, reason = "only with all features is everything used")
)]

#[cfg(feature = "catalog")]
pub mod catalog;
mod context;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "the one module that calls the driver")]
pub mod cuda;
mod dim;
mod error;
mod guard;
#[cfg(feature = "host")]
mod host;
#[cfg(any(feature = "cuda", feature = "image"))]
pub mod image;
mod launch;
mod limits;
mod observe;
mod plan;
#[cfg(feature = "profile")]
pub mod profile;
mod record;

pub use context::ContextState;
/// The bindings that contexts, streams and memory of [`cuda`] come from.
#[cfg(feature = "cuda")]
pub use cudarc;
pub use dim::{Axis, Dim3};
pub use error::Error;
/// Rewriting of PTX: the package `gridguard-ptx`. It needs no CUDA; `Guard::load_ptx` loads the result.
#[cfg(feature = "ptx")]
pub use gridguard_ptx as ptx;
pub use guard::{FallbackReason, Guard};
#[cfg(feature = "host")]
pub use host::HostError;
pub use launch::request::LaunchRequest;
pub use launch::rule::{Rule, Unit};
pub use launch::valid::ValidLaunch;
pub use launch::validate::validate;
pub use launch::violation::{Owner, Remedy, Violation, Violations};
pub use launch::{abi, validate::validate_co_resident};
pub use limits::{
    ComputeCapability, DeviceLimits, IndexLimit, IndexTerm, KernelLimits, LaunchLimits,
    OccupancyLimits,
};
// Evidence of the driver's errors, and a constant for the conformance test.
pub use limits::{FormLimits, LOCAL_BYTES_PER_THREAD, LocalMemory};
#[cfg(feature = "metrics")]
pub use observe::describe_metrics;
pub use plan::arguments::{ArgsError, KernelArgs, MAX_ARGS, RawArgs};
pub use plan::backoff::WorkspaceError;
pub use plan::backoff::{AllocationError, fit_workspace};
pub use plan::batch::BatchAxis;
#[cfg(feature = "serde")]
pub use plan::check;
pub use plan::choice::{Choice, Strategy};
pub use plan::chunks::{Chunk, Chunks};
pub use plan::explain::explain;
pub use plan::launches::{Plan, PlannedLaunch};
pub use plan::run::PartialRun;
pub use plan::signature::Parameter;
pub use plan::slot::{Count, Scalar};
pub use record::counters::Counts;
// For the packages of this workspace.
#[doc(hidden)]
pub use {launch::violation::count, plan::run::catch_panic};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
