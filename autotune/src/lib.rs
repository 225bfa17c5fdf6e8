//! Finds the fastest legal way to run a CUDA launch and stores it in a profile.
//!
//! A [`Workload`] describes what may vary. [`Space`] turns it into legal candidates through the
//! guard's planner. A [`Measurer`] checks and times them. [`tune()`] searches, and the
//! [`TuningOutcome`] becomes an entry of a [`gridguard::profile`].
//!
//! [`tune_fn()`] does all of this for a closure, and returns the entry.
//!
//! # Tuning your own workload
//!
//! This example runs on the host. On a device, use a [`DeviceClock`] and submit to the clock's stream in
//! `launch`. Your manifest needs `gridguard` with the features `host` and `profile`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use gridguard::profile::{Document, Key, L2, Layers, Match, Policy, Provenance, publish};
//! use gridguard::{
//!     Axis, BatchAxis, DeviceLimits, Dim3, Guard, KernelLimits, LaunchRequest, Plan,
//!     launch_chunk_on_host,
//! };
//! use gridguard_autotune::{
//!     Budget, Candidate, FailureKind, HostClock, InProcess, LaunchConfig, MeasureFailure, Measurer,
//!     Portion, Space, TuningReport, Workload, tune,
//! };
//!
//! const ROWS: u64 = 100_000;
//!
//! /// Adds up the integers to 64 or fewer in each row, `step` at a time.
//! struct Sums {
//!     guard: Arc<Guard>,
//!     sums: Vec<u64>,
//! }
//!
//! fn failure(error: impl ToString) -> MeasureFailure {
//!     MeasureFailure::new(FailureKind::Launch, error.to_string())
//! }
//!
//! impl Sums {
//!     /// One block per row on y, where a grid has at most 65,535 blocks: the planner splits it.
//!     fn configuration(&self, step: u64) -> LaunchConfig {
//!         LaunchConfig {
//!             parameters: vec![("step".to_owned(), step)],
//!             request: LaunchRequest::new(Dim3::new(1, ROWS, 1), Dim3::new(step, 1, 1)),
//!             batch: Some(BatchAxis::new(Axis::Y, ROWS)),
//!             limits: self.guard.limits_for(KernelLimits::unknown("sums")),
//!         }
//!     }
//! }
//!
//! impl Workload for Sums {
//!     fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
//!         Ok([8, 1].map(|step| self.configuration(step)).into())
//!     }
//!
//!     fn prepare(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
//!         Ok(()) // Nothing to compile or allocate.
//!     }
//!
//!     fn launch(
//!         &mut self,
//!         candidate: &Candidate,
//!         portion: Portion,
//!     ) -> Result<(), MeasureFailure> {
//!         let step = candidate.parameters[0].1;
//!         let LaunchConfig { request, batch, limits, .. } = self.configuration(step);
//!         let plan = Plan::new(&request, batch.as_ref(), &limits, candidate.choice.into());
//!         let plan = plan.map_err(failure)?;
//!         let kernel = move |row: u64, sum: &mut [u64]| {
//!             let steps = (0..=row % 64).step_by(step as usize);
//!             sum[0] = steps.flat_map(|start| start..(row % 64 + 1).min(start + step)).sum();
//!         };
//!         let largest = plan.launches().max_by_key(|planned| planned.chunk.items);
//!         match (portion, largest) {
//!             (Portion::LargestLaunch, Some(one)) => {
//!                 launch_chunk_on_host(&one.chunk, &mut self.sums, 1, &kernel).map_err(failure)
//!             }
//!             _ => {
//!                 let ran = self.guard.launch_on_host(&plan, &mut self.sums, 1, kernel);
//!                 ran.map(drop).map_err(failure)
//!             }
//!         }
//!     }
//!
//!     fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
//!         self.sums.fill(u64::MAX);
//!         self.launch(candidate, Portion::Sequence)?;
//!         let is_correct = |(row, sum): (u64, &u64)| *sum == (row % 64) * (row % 64 + 1) / 2;
//!         match (0..).zip(&self.sums).all(is_correct) {
//!             true => Ok(()),
//!             false => Err(MeasureFailure::new(FailureKind::Mismatch, "wrong sum")),
//!         }
//!     }
//! }
//!
//! let guard = Arc::new(Guard::host(DeviceLimits::any_device()));
//! let policy = Policy { l2: L2::Hot, ..Policy::default() };
//! let workload = Sums { guard: Arc::clone(&guard), sums: vec![0; ROWS as usize] };
//! let mut measurer = InProcess::new(workload, HostClock::new(policy));
//! let mut space = Space::new(measurer.configurations()?);
//! # // Shortened, so that the documentation test is fast.
//! # let budget = Budget { evaluations: Some(10), ..Budget::default() };
//! # /*
//! let budget = Budget::default();
//! # */
//! let outcome = tune(&mut measurer, &mut space, Default::default(), &budget, &mut ())?;
//! println!("{}", TuningReport::new("sums", &outcome));
//!
//! // The key that a server looks up.
//! let key = Key {
//!     kernel: "sums".into(),
//!     source: "1".into(), // Changes with the kernel's code.
//!     dtypes: "u64".into(),
//!     policy,
//!     ..Key::default()
//! };
//! let environment = guard.environment();
//! let found = Provenance {
//!     date: "2026-11-20T12:00:00Z".into(),
//!     tuner: environment.tuner.clone(),
//!     ..Provenance::default()
//! };
//! let mut document = Document::new(guard.identity(), environment.clone());
//! document.insert(outcome.entry(key.clone(), vec![("rows".into(), ROWS)], found))?;
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let file = folder.join(guard.identity().file_name());
//! publish(&file, &document)?;
//! let loaded = Layers::new().explicit(&file).load(&guard.identity(), &environment);
//! let tuned = loaded.profile.lookup(&key, &[ROWS]);
//! assert_eq!((tuned.matched, tuned.choice()), (Match::Exact, outcome.winner.choice.into()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # In a child process
//!
//! A candidate that crashes ends its process. [`Remote`] is a [`Measurer`] that starts a child process, which
//! calls [`serve`], and a new one after each crash. A [`Journal`] keeps every result, and [`Resumed`]
//! continues an interrupted search from it.
//!
//! # Pipelines
//!
//! A [`PipelineProblem`] runs a [`gridguard::pipeline`]. The candidates of its [`PipelineWorkload`] are plans
//! with different chunks, chunks in flight and launch parameters, all within a memory budget. A
//! [`ProductWorkload`] multiplies matrices; its candidates are the algorithms of cuBLASLt.
//!
//! # Programs that are not written in Rust
//!
//! A [`ProgramProblem`] describes a program that takes its parameters on the command line, and a
//! [`ProgramMeasurer`] runs it for each candidate. [`Space::listed`] makes a space of them.
//!
//! ```
//! use std::time::Duration;
//!
//! use gridguard_autotune::{Budget, ProgramMeasurer, ProgramProblem, Space, tune};
//!
//! // Any program that prints its time. This one takes longer for larger blocks.
//! let command = r#"sh -c 'echo "{{\"ms\": 0.0{block}}}"'"#;
//! let (sizes, blocks) = (vec![("items".to_owned(), 1000)], vec![64, 32, 16]);
//! let problem = ProgramProblem::new(command, sizes, vec![("block".to_owned(), blocks)], vec![])?;
//! let mut space = Space::listed(problem.candidates());
//! let mut measurer = ProgramMeasurer::new(problem, Duration::from_secs(60));
//! let outcome = tune(&mut measurer, &mut space, Default::default(), &Budget::default(), &mut ())?;
//! assert_eq!(outcome.winner.parameters, [("block".to_owned(), 16)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod candidate;
mod clock;
mod control;
mod failure;
mod idle;
mod in_process;
mod journal;
mod lines;
mod measure;
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
mod tune;
mod tune_fn;
mod variant;

pub use candidate::{Candidate, LaunchConfig};
pub use clock::{DeviceClock, HostClock};
pub use control::{Budget, Observer, SearchProgress, Stage};
pub use failure::{FailureKind, MeasureFailure, Measured, TuneError};
pub use idle::WhenIdle;
pub use in_process::InProcess;
pub use journal::{Journal, JournalError, JournalRecord, Resumed};
pub use measure::{Clock, Measurer, Portion, Sample, Work, Workload};
pub use outcome::{CandidateVerdict, LatencyOutcome, MeasuredCandidate, TuningOutcome};
pub use pipeline::{PipelineProblem, PipelineWorkload};
pub use plot::{Chart, PlotError};
pub use product::ProductWorkload;
pub use program::{ProgramError, ProgramMeasurer, ProgramProblem};
pub use ranges::RangeError;
pub use remote::{Remote, RemoteError, ServeError, Timeouts, serve, serve_on, unended_processes};
pub use report::TuningReport;
#[doc(hidden)]
pub use report::duration;
pub use space::Space;
pub use stats::Samples;
#[doc(hidden)]
pub use stats::real;
pub use tune::tune;
pub use tune_fn::{FnJournalError, FnSpace, Trial, TuneFnError, TunedFn, Values, tune_fn};

/// The example of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
