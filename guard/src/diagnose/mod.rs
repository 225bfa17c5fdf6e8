//! Gives every CUDA failure its true name: what it means, what usually causes it, what to do.
//!
//! Nothing here asks a driver: a code, a name, the words of a message or a whole log go in, and
//! whatever else is known goes in as [`Evidence`], which ranks the causes and rules some out.
//!
//! ```
//! use gridguard::diagnose::{Evidence, Log, diagnose};
//!
//! let mut log = Log::new();
//! log.line("RuntimeError: CUDA error: an illegal memory access was encountered");
//! let findings = log.findings();
//! assert_eq!(findings[0].subject.to_string(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)");
//! let diagnosis = diagnose(&findings[0].subject, &Evidence::default());
//! assert!(diagnosis.sticky && diagnosis.late);
//! ```

mod codes;
mod diagnosis;
mod evidence;
mod failure;
mod parse;
mod subject;

pub use codes::failures;
pub use diagnosis::{Cause, Diagnosis, diagnose};
#[cfg(feature = "cuda")]
pub(crate) use evidence::answers;
pub use evidence::{CudaVersion, Evidence};
pub use failure::{Failure, Origin, UsualCause};
#[cfg(feature = "cuda")]
pub(crate) use parse::architecture;
pub use parse::{Finding, LONGEST_LINE_BYTES, Log, MOST_FINDINGS};
pub use subject::Subject;
