//! Finds the fastest legal way to run a launch, and keeps it in a profile.
//!
//! The way of a tuning: a [`Workload`] says what may be varied, [`Space`] makes legal candidates of
//! it through the guard's planner, a [`Measurer`] checks and times them, [`tune`] searches, and
//! the [`TuningOutcome`] becomes an entry of a [`gridguard::profile`].
//!
//! # A workload of one's own
//!
//! Here on the host; on a device it is the same with a [`DeviceClock`], and `launch` submits to the
//! clock's stream. A manifest needs `gridguard` with the features `host` and `profile` beside this
//! crate, and cudarc with its CUDA version, which neither crate chooses.
//!
//! ```
//! use std::sync::Arc;
//!
//! use gridguard::profile::{Document, Key, L2, Layers, Match, Policy, Provenance, publish};
//! use gridguard::{
//!     Axis, BatchAxis, DeviceLimits, Dim3, Guard, HostLauncher, KernelLimits, LaunchRequest, Launcher,
//!     Plan,
//! };
//! use gridguard_autotune::{
//!     Budget, Candidate, LaunchConfig, MeasureFailure, FailureKind, HostClock, InProcess, Portion, TuningReport,
//!     ProblemMeasurer, Space, Workload, tune,
//! };
//!
//! const ROWS: u64 = 100_000;
//!
//! /// Adds up the numbers to 64 or fewer in each row, some at a time.
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
//!     /// One row a block on y, where the grid ends at 65,535: the planner splits.
//!     fn configuration(&self, step: u64) -> LaunchConfig {
//!         LaunchConfig {
//!             parameters: vec![("step".to_owned(), step)],
//!             request: LaunchRequest::new(Dim3::new(1, ROWS, 1), Dim3::new(step, 1, 1)),
//!             batch: BatchAxis::new(Axis::Y, ROWS),
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
//!         Ok(()) // Nothing to compile or to allocate.
//!     }
//!
//!     fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure> {
//!         let step = candidate.parameters[0].1;
//!         let LaunchConfig { request, batch, limits, .. } = self.configuration(step);
//!         let plan = Plan::new(&request, Some(&batch), &limits, candidate.choice.into());
//!         let plan = plan.map_err(failure)?;
//!         let kernel = move |row: u64, sum: &mut [u64]| {
//!             let steps = (0..=row % 64).step_by(step as usize);
//!             sum[0] = steps.flat_map(|start| start..(row % 64 + 1).min(start + step)).sum();
//!         };
//!         let mut launcher = HostLauncher::new(&mut self.sums, 1, kernel);
//!         let largest = plan.launches().max_by_key(|planned| planned.chunk.items);
//!         match (portion, largest) {
//!             (Portion::LargestLaunch, Some(one)) => launcher.launch(&one).map_err(failure),
//!             _ => self.guard.run(&plan, &mut launcher).map(drop).map_err(failure),
//!         }
//!     }
//!
//!     fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
//!         self.sums.fill(u64::MAX);
//!         self.launch(candidate, Portion::Sequence)?;
//!         let is_right = |(row, sum): (u64, &u64)| *sum == (row % 64) * (row % 64 + 1) / 2;
//!         match (0..).zip(&self.sums).all(is_right) {
//!             true => Ok(()),
//!             false => Err(MeasureFailure::new(FailureKind::Mismatch, "another sum")),
//!         }
//!     }
//! }
//!
//! let guard = Arc::new(Guard::host(DeviceLimits::any_device()));
//! let policy = Policy { l2: L2::Hot, ..Policy::default() };
//! let workload = Sums { guard: Arc::clone(&guard), sums: vec![0; ROWS as usize] };
//! let mut measurer = InProcess::new(workload, HostClock::new(policy));
//! let mut space = Space::new(measurer.configurations()?);
//! # // Documentation is not to wait for a whole search.
//! # let budget = Budget { evaluations: Some(10), ..Budget::default() };
//! # /*
//! let budget = Budget::default();
//! # */
//! let outcome = tune(&mut measurer, &mut space, Default::default(), &budget, &mut ())?;
//! println!("{}", TuningReport::new("sums", &outcome));
//!
//! // What a server will look up.
//! let key = Key {
//!     kernel: "sums".into(),
//!     source: "1".into(), // Another one for other code.
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
//! let answer = loaded.profile.lookup(&key, &[ROWS]);
//! assert_eq!((answer.matched, answer.choice()), (Match::Exact, outcome.winner.choice.into()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # In a child process
//!
//! A candidate that crashes takes its process with it. [`Remote`] starts one that calls [`serve`],
//! and another one after each that died; it is a [`Measurer`] like [`InProcess`]. What it answered a
//! [`Journal`] holds, from which [`Resumed`] goes on after an interruption.

mod budget;
mod candidate;
mod clock;
mod deal;
mod evaluate;
mod failure;
mod in_process;
mod journal;
mod measurer;
mod number;
mod observer;
mod outcome;
mod plot;
#[cfg(test)]
mod recorded;
mod remote;
mod report;
mod sample;
mod search;
#[cfg(test)]
mod simulation;
mod space;
mod stats;
mod stop;
mod throttle;
mod tune;
mod workload;

pub use budget::Budget;
pub use candidate::{Candidate, LaunchConfig};
pub use clock::{Clock, DeviceClock, HostClock, WarmUp, WorkId};
pub use deal::{Part, Shard, ShardError, WorkItem, WorkQueue};
pub use evaluate::{
    EvaluateError, Evaluation, EvaluationEffort, ExhaustiveSearch, SearchRun, evaluate, ratio,
};
pub use in_process::InProcess;
pub use journal::{Journal, JournalRecord, Resumed};
pub use measurer::{FailureKind, MeasureFailure, Measurer};
pub use observer::{Observer, SearchProgress, Stage};
pub use outcome::{CandidateVerdict, LatencyOutcome, MeasuredCandidate, TuningOutcome};
pub use plot::{Chart, PlotError};
pub use remote::{LineError, ProblemMeasurer, Remote, RemoteError, ServeError, Timeouts, serve};
pub use report::{ReportRow, TuningReport, duration};
pub use sample::{Portion, Sample};
pub use space::Space;
pub use stats::{Interval, PairedRatio, Samples};
pub use tune::{TuneError, tune};
pub use workload::Workload;
