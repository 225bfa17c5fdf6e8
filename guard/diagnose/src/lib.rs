//! Explains failures of CUDA and of what looks like it: what an error code, a message or a whole log means, what caused
//! it, and how to fix it.
//!
//! The crate knows no failure: [its rows](https://github.com/gridguard/gridguard/tree/main/bench-data/failures) are data, from which
//! its build script makes tables. No driver is called. Facts that are not in the log are passed as [`Known`].
//!
//! ```
//! use gridguard_diagnose::{Confidence, Known, LogScanner};
//!
//! let mut log = LogScanner::new();
//! log.line("RuntimeError: CUDA error: an illegal memory access was encountered");
//! let diagnosis = log.diagnosis(&Known::default());
//! let failure = &diagnosis.failures[0];
//! assert_eq!((failure.id.as_str(), failure.code), ("cuda-700", Some(700)));
//! assert!(failure.is_sticky && failure.is_late && failure.confidence == Confidence::Generic);
//! println!("{diagnosis}");
//! ```
//!
//! # Features
//!
//! - `serde`: [`Diagnosis`] can be serialized.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod diagnosis;
mod input;
mod kinds;
mod known;
mod pattern;
mod rank;
mod relation;
mod rows;
mod scan;
mod template;
mod traceback;
mod value;
mod words;

pub use diagnosis::{Cause, Consequence, Diagnosis, Failure, Line, StatedLaunch};
pub use input::MAX_LINE_BYTES;
pub use kinds::{Confidence, Fault, Memory, Platform};
pub use known::{CudaVersion, Known, ViolatedRule};
pub use rows::similar_failures;
pub use scan::LogScanner;

/// Explains a name, a message or a number with its kind, as `CUDA error 700`.
#[must_use]
pub fn diagnose(text: &str, known: &Known) -> Diagnosis {
    let mut log = LogScanner::for_question();
    log.line(text);
    log.diagnosis(known)
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
