//! Finds the fastest legal way to run a launch, and keeps it in a profile.
//!
//! The way of a tuning: a [`Workload`] says what may be varied, [`Space`] makes legal candidates of
//! it through the guard's planner, a [`Measurer`] checks and times them, [`tune`] searches, and
//! the [`Outcome`] becomes an entry of a [`gridguard::profile`].

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
pub use candidate::{Candidate, Configuration};
pub use clock::{Clock, DeviceClock, HostClock, WarmUp, WorkId};
pub use deal::{Deal, Part, Shard, ShardError, Turn};
pub use evaluate::{Effort, EvaluateError, Evaluation, Oracle, Run, evaluate, ratio};
pub use in_process::InProcess;
pub use journal::{Journal, Record, Resumed};
pub use measurer::{Failure, FailureKind, Measurer};
pub use observer::{Observer, Progress, Stage};
pub use outcome::{LatencyOutcome, Measured, Outcome, Verdict};
pub use plot::{Chart, PlotError};
pub use remote::{LineError, Patience, Remote, RemoteError, ServeError, Served, serve};
pub use report::{Report, Row, duration};
pub use sample::{Portion, Sample};
pub use space::Space;
pub use stats::{Interval, PairedRatio, Samples};
pub use tune::{TuneError, tune};
pub use workload::Workload;
