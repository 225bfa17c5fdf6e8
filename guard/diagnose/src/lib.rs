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
//! - `serde`: [`Diagnosis`] and [`FailureId`] can be serialized.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod capability;
mod clue;
mod codes;
mod diagnosis;
mod evidence;
mod failure;
mod failure_id;
mod kinds;
mod parse;
mod pattern;
mod rank;
mod relation;
mod remarks;
mod rows;
mod scan;
mod shape;
mod stated;
mod template;
mod value;
mod words;

pub use answer::{Answer, Finding};
pub use capability::Capability;
pub use clue::Clue;
pub use codes::known_failures;
pub use diagnosis::{Diagnosis, diagnose};
pub use evidence::{CudaVersion, Evidence, LaunchConfig, LaunchSizes, ViolatedRule};
pub use failure::{Cause, KnownCause, KnownFailure, Origin};
pub use failure_id::FailureId;
pub use kinds::{Confidence, Fault, Memory, Platform};
use parse::input;
pub use parse::{LogFinding, LogScanner, MAX_FINDINGS, MAX_LINE_BYTES, similar_failures};
pub use remarks::Remarks;
pub use scan::Scanner;

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
