//! Explains CUDA failures: what an error code, a message or a whole log means, what usually causes
//! it, and how to fix it.
//!
//! The input is a code, a name, a message or a log; no driver is called. Other facts about the failure are
//! passed as [`Evidence`], which ranks the causes and rules some of them out. The tables cover CUDA 13 (driver
//! and runtime), cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE, NCCL, NVRTC, NVML, Xids, and messages of PyTorch, Triton,
//! vLLM, XLA, compute-sanitizer and container runtimes.
//!
//! ```
//! use gridguard_diagnose::{LogScanner, diagnose};
//!
//! let mut log = LogScanner::new();
//! log.line("RuntimeError: CUDA error: an illegal memory access was encountered");
//! let findings = log.findings();
//! assert_eq!(findings[0].failure.to_string(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)");
//!
//! let diagnosis = diagnose(&findings[0].failure, &findings[0].evidence);
//! assert!(diagnosis.sticky && diagnosis.late);
//! println!("{diagnosis}");
//! ```
//!
//! # Features
//!
//! - `explain` (default): everything above. Otherwise the package only has [`ContextState`], the table of
//!   results that make a context unusable. `gridguard` always uses this table, so that guard, diagnoses and
//!   tuner agree on it.
//! - `serde`: [`Diagnosis`] and [`FailureId`] can be serialized.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "explain"),
    allow(rustdoc::broken_intra_doc_links, reason = "the links are to items of that feature")
)]

mod context;

#[cfg(feature = "explain")]
mod capability;
#[cfg(feature = "explain")]
mod clue;
#[cfg(feature = "explain")]
mod codes;
#[cfg(feature = "explain")]
mod diagnosis;
#[cfg(feature = "explain")]
mod evidence;
#[cfg(feature = "explain")]
mod failure;
#[cfg(feature = "explain")]
mod failure_id;
#[cfg(feature = "explain")]
mod parse;
#[cfg(feature = "explain")]
mod remarks;
#[cfg(feature = "explain")]
mod shape;
#[cfg(feature = "explain")]
mod stated;

pub use context::ContextState;
#[cfg(feature = "explain")]
pub use {
    capability::Capability,
    clue::Clue,
    codes::known_failures,
    diagnosis::{Diagnosis, diagnose},
    evidence::{CudaVersion, Evidence, LaunchSizes, ViolatedRule},
    failure::{Cause, KnownCause, KnownFailure, Origin},
    failure_id::FailureId,
    parse::{LogFinding, LogScanner, MAX_FINDINGS, MAX_LINE_BYTES, similar_failures},
    remarks::Remarks,
};

/// The examples of the README.
#[cfg(all(doctest, feature = "explain"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
