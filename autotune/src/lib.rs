//! Finds the fastest legal way to run a CUDA launch, and stores it in a profile.
//!
//! The tuner varies the size of chunks and the values of your launch parameters. The guard's planner validates every
//! candidate, and its whole output is compared before it is timed. Samples of candidates are interleaved, so that a
//! drifting clock affects all alike. The default stays unless another candidate is faster by more than 2 %.
//!
//! Use it for a kernel that runs often in sizes that you know: tune once on each kind of GPU, ship the profile, and look
//! the choice up at run time with [`Guard::tuned`](gridguard::Guard::tuned).
//!
//! # A closure
//!
//! [`tune_fn()`] tunes a closure that runs one candidate. Here it runs on the host; on a device, give the space the guard
//! and a stream with [`FnSpace::on_stream`].
//!
//! ```
//! use gridguard::profile::Key;
//! use gridguard_autotune::{FnSpace, tune_fn};
//!
//! let (x, mut y) = (vec![1.0_f32; 10_000], vec![0.0; 10_000]);
//! let space = FnSpace::new([("items", 10_000)]).parameter("step", [100, 1000]).chunk_auto();
//! # let space = space.time_limit(std::time::Duration::from_millis(200));
//! let key = Key { kernel: "double".into(), dtypes: "f32".into(), ..Key::default() };
//! let tuned = tune_fn(&key, space, |trial| {
//!     let step = trial.get("step")? as usize;
//!     for range in trial.chunks() {
//!         let range = range.start as usize..range.end as usize;
//!         for (x, y) in x[range.clone()].chunks(step).zip(y[range].chunks_mut(step)) {
//!             x.iter().zip(y).for_each(|(x, y)| *y = 2.0 * x);
//!         }
//!     }
//!     trial.output(|| Ok(y.clone()))
//! })?;
//! println!("{:?} {:?}", tuned.choice, tuned.parameter("step"));
//! # Ok::<(), gridguard_autotune::Error>(())
//! ```
//!
//! [`TunedFn::publish`] adds the entry to the profile of the guard's device.
//!
//! # Where next
//!
//! | you have | use |
//! |---|---|
//! | a kernel with its own memory, checks or several launches | a [`Workload`], timed by [`InProcess`] with a [`DeviceClock`] or [`HostClock`]; [`Space`] makes legal candidates of its [`LaunchConfig`]s, [`tune()`] searches, and [`TuningOutcome::entry`] is the entry of a profile |
//! | candidates that may crash or hang | [`Remote`] measures in a child process that calls [`serve`], and starts a new one after a crash |
//! | a search that takes hours | a [`Journal`] keeps every result, and [`Resumed`] continues from it |
//! | a GPU that others use | [`WhenIdle`] |
//! | shapes that nobody measured | [`Measurements`] makes a few rows that decide all sizes |
//! | several kernels within a memory budget | a [`PipelineProblem`] |
//! | a product of matrices by cuBLASLt | a [`ProductWorkload`] |
//! | a program in any language that prints its times | a [`ProgramProblem`], measured by a [`ProgramMeasurer`] |
//!
//! The README has a [`Workload`] as an example.

mod candidate;
mod clock;
mod control;
mod error;
mod failure;
mod idle;
mod in_process;
mod journal;
mod lines;
mod measure;
mod measurements;
mod outcome;
mod pipeline;
mod plot;
mod product;
mod program;
mod ranges;
mod remote;
mod report;
mod sampling;
mod search;
mod space;
mod stats;
#[cfg(test)]
mod tests;
mod transfer;
mod tune;
mod tune_fn;
mod variant;

pub use candidate::{Candidate, LaunchConfig};
pub use clock::{DeviceClock, HostClock};
pub use control::{Budget, Observer, SearchProgress, Stage};
pub use error::{Error, ErrorKind};
pub use failure::{FailureKind, MeasureFailure, Measured};
pub use idle::WhenIdle;
pub use in_process::InProcess;
pub use journal::{Journal, JournalRecord, Resumed};
pub use measure::{Clock, Measurer, Portion, Sample, Work, Workload};
pub use measurements::{HeldOut, Measurements};
pub use outcome::{CandidateVerdict, LatencyOutcome, MeasuredCandidate, TuningOutcome};
pub use pipeline::{PipelineProblem, PipelineWorkload};
pub use plot::Chart;
pub use product::ProductWorkload;
pub use program::{ProgramMeasurer, ProgramProblem};
pub use remote::{Remote, Timeouts, serve, serve_on, unended_processes};
pub use report::{TuningReport, duration};
pub use space::Space;
pub use stats::{Samples, real};
pub use transfer::{Roofline, attainable, transfer};
pub use tune::tune;
pub use tune_fn::{FnSpace, Trial, TunedFn, Values, tune_fn};

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
