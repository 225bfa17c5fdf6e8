//! Measures one entry of a profile beside what a new search finds.

use std::sync::atomic::{AtomicBool, Ordering};

use gridguard::profile::{Entry, Key, Objective, Policy};
use gridguard::{Choice, Plan};
use gridguard_autotune::{
    Budget, Candidate, FailureKind, Measurer, PairedRatio, Portion, Remote, Samples, Space,
    Timeouts, duration, tune,
};
use gridguard_kernels::bench::Problem;
use serde::Serialize;

use super::words;
use crate::error::CommandError;
use crate::tune::child;
use crate::tune::progress::Progress;
use crate::tune::target::Target;

/// What a new measurement says of an entry.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Verified {
    /// What a new search chooses.
    pub(super) fresh: Candidate,
    /// By how much of the fresh choice's time the entry's takes longer; zero where they are the same.
    pub(super) regret: f64,
    /// The median time of the entry's choice now.
    pub(super) median_ns: u64,
}

/// A device and the process that measures on it.
pub(super) struct Bench<'a> {
    target: &'a Target,
    gpu: &'a str,
    interrupt: &'static AtomicBool,
    progress: Progress,
    /// The process of the entry before, which takes its times by one policy.
    remote: Option<(Policy, Remote)>,
}

impl<'a> Bench<'a> {
    pub(super) const fn new(
        target: &'a Target,
        gpu: &'a str,
        interrupt: &'static AtomicBool,
        progress: Progress,
    ) -> Self {
        Self { target, gpu, interrupt, progress, remote: None }
    }

    /// Searches anew and compares; `None` where somebody interrupts before it is known.
    pub(super) fn verify(
        &mut self,
        problem: &Problem,
        entry: &Entry,
    ) -> Result<Option<Verified>, CommandError> {
        if self.is_interrupted() {
            return Ok(None);
        }
        let Key { policy, objective, .. } = entry.key;
        self.progress.begin(problem);
        let mut remote = self.open(problem, policy)?;
        let compared = self.compare(&mut remote, objective, entry);
        // Whoever lost its process for good is not asked again.
        self.remote = Some((policy, remote)).filter(|(_, remote)| remote.lost().is_none());
        compared
    }

    fn compare(
        &mut self,
        remote: &mut Remote,
        objective: Objective,
        entry: &Entry,
    ) -> Result<Option<Verified>, CommandError> {
        let mut space = Space::new(remote.configurations().to_vec());
        space.restrict(objective);
        // In a copy: what is stored must not lead the new search.
        let stored = space.clone().add(&entry.parameters, entry.choice);
        let stored = stored.ok_or_else(|| why_illegal(&space, entry))?;
        let budget = Budget { interrupt: Some(self.interrupt), ..Budget::default() };
        let outcome = tune(remote, &mut space, objective, &budget, &mut self.progress)?;
        if !outcome.complete {
            return Ok(None);
        }
        let fresh = outcome.winner.clone();
        if same_plan(&stored, &fresh) {
            let median_ns = outcome.chosen.median_ns;
            return Ok(Some(Verified { fresh, regret: 0.0, median_ns }));
        }
        remote.check(&stored)?;
        let bound = outcome.latency.filter(|latency| latency.met).map(|one| one.max_launch_ns);
        if let Some(bound_ns) = bound
            && !self.keeps_within(remote, &stored, bound_ns)?
        {
            return Ok(None);
        }
        self.race(remote, &stored, fresh)
    }

    /// The process that measures, with the problem open.
    fn open(&mut self, problem: &Problem, policy: Policy) -> Result<Remote, CommandError> {
        if let Some((before, mut remote)) = self.remote.take()
            && before == policy
            && remote.reopen(problem.to_string()).is_ok()
        {
            return Ok(remote);
        }
        let command = child::command(self.target, self.gpu, policy)?;
        Ok(Remote::spawn(command, problem.to_string(), Timeouts::default())?)
    }

    /// Times both in turns, each first as often as the other.
    fn race(
        &self,
        remote: &mut Remote,
        stored: &Candidate,
        fresh: Candidate,
    ) -> Result<Option<Verified>, CommandError> {
        let mut pairs = Vec::new();
        for round in 0..=ROUNDS {
            if self.is_interrupted() {
                return Ok(None);
            }
            let pair = if round % 2 == 0 {
                let first = time(remote, stored, Portion::Sequence)?;
                (first, time(remote, &fresh, Portion::Sequence)?)
            } else {
                let first = time(remote, &fresh, Portion::Sequence)?;
                (time(remote, stored, Portion::Sequence)?, first)
            };
            // The first of each is warming up.
            if round > 0 {
                pairs.push(pair);
            }
        }
        let times = Samples::new(pairs.iter().map(|(stored, _)| *stored));
        let verified = PairedRatio::new(pairs).zip(times).map(|(ratio, times)| {
            let median_ns = times.summary().median_ns;
            Verified { fresh, regret: ratio.median - 1.0, median_ns }
        });
        let none =
            || gridguard_autotune::MeasureFailure::new(FailureKind::Launch, "no time was measured");
        Ok(Some(verified.ok_or_else(none)?))
    }

    /// Whether a launch of the choice stays within its bound, which is an error else; no where
    /// somebody interrupts.
    fn keeps_within(
        &self,
        remote: &mut Remote,
        stored: &Candidate,
        bound_ns: u64,
    ) -> Result<bool, CommandError> {
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            if self.is_interrupted() {
                return Ok(false);
            }
            let time = time(remote, stored, Portion::LargestLaunch)?;
            if round > 0 {
                times.push(time);
            }
        }
        let median = Samples::new(times).map_or(f64::INFINITY, |times| times.median());
        let bound = words::real(bound_ns);
        if median <= bound {
            return Ok(true);
        }
        let (median, bound) = (duration(median), duration(bound));
        Err(CommandError::Failed(format!(
            "the stored choice is no longer valid: a launch takes {median}, the limit is {bound}"
        )))
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }
}

/// One time in nanoseconds.
fn time(remote: &mut Remote, candidate: &Candidate, portion: Portion) -> Result<f64, CommandError> {
    let samples = remote.sample(candidate, portion, 1)?;
    Ok(samples.first().map_or(f64::NAN, |sample| sample.time_ns))
}

/// Why an entry stands for no candidate.
fn why_illegal(space: &Space, entry: &Entry) -> CommandError {
    let planned = space.configuration(&entry.parameters).map(|configuration| {
        let (request, batch) = (&configuration.request, Some(&configuration.batch));
        Plan::new(request, batch, &configuration.limits, Choice::from(entry.choice))
    });
    let message = match planned {
        None => format!(
            "the kernel does not take the parameters {} here: tune it anew",
            words::parameters(&entry.parameters)
        ),
        Some(Err(violations)) => violations.to_string(),
        Some(Ok(_)) => "the choice makes no plan: tune it anew".into(),
    };
    CommandError::Failed(format!("the stored choice is no longer valid: {message}"))
}

fn same_plan(one: &Candidate, other: &Candidate) -> bool {
    let plan = |of: &Candidate| (of.strategy, of.launches, of.largest_chunk);
    plan(one) == plan(other) && one.parameters == other.parameters
}

/// Pairs of samples: enough for an interval, few enough to pay.
const ROUNDS: u32 = 21;
